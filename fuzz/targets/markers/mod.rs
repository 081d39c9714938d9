//! Checks of a marker decoder, for any bytes.

use dioxide::fuzzing::Marker;

/// The offset of the checksum of the bytes before it.
const CHECKSUM: usize = 60;

/// The bytes with the marker's length and a valid checksum.
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    sealed.resize(CHECKSUM, 0);
    sealed.extend(crc32fast::hash(&sealed).to_le_bytes());
    sealed
}

/// Passes `bytes` to `decode`, unchanged and with a valid checksum.
pub fn check(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<Marker, String>) {
    if decode(bytes).is_ok() {
        assert_eq!(bytes, sealed(bytes), "a wrong checksum is believed");
    }
    let bytes = sealed(bytes);
    let Ok(marker) = decode(&bytes) else { return };
    let encoded = marker.encode();
    assert_eq!(decode(&encoded), Ok(marker), "it does not say what it said");
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&flipped).is_err(), "bit {bit} may be flipped");
    }
}
