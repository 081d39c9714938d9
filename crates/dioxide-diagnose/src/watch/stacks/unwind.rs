//! Finds the callers of a sleeping thread's function by unwind tables.
//!
//! The kernel shows two registers of a thread that sleeps: the instruction and the stack pointer.
//! Most functions need no others. A function that addresses its frame by `rbp` gets it from its own
//! first instructions ([`frame_bytes`]). A wrong guess does not pass: a return address must follow
//! a call instruction.

use super::image::Image;
use gimli::{CfaRule, Register, RegisterRule, UnwindContext, UnwindTableRow};

/// The numbers of registers in the tables of x86-64.
const RBP: u16 = 6;
const RSP: u16 = 7;
const RETURN_ADDRESS: u16 = 16;
const REGISTERS: usize = 16;

/// Longer stacks are not followed.
const DEPTH_MAX: usize = 64;
/// So many bytes at the start of a function contain its first instructions.
const PROLOGUE_BYTES: usize = 64;

/// What the unwinder reads of a process.
pub trait Memory {
    /// A word of the stack.
    fn word(&self, address: u64) -> Option<u64>;
    /// Bytes of code.
    fn code(&self, address: u64, bytes: &mut [u8]) -> bool;
    /// The image with this code, its number, and the distance of addresses in memory from those as
    /// linked.
    fn image(&mut self, address: u64) -> Option<(usize, &Image, u64)>;
}

/// A function on a stack: the number of its image, and its first address as linked.
pub type Frame = (usize, u64);

/// The functions on the stack, innermost first. It ends where the tables end, or when it is late.
pub fn unwind(
    memory: &mut impl Memory,
    pc: u64,
    sp: u64,
    context: &mut UnwindContext<usize>,
    is_late: impl Fn() -> bool,
) -> Vec<Frame> {
    let mut registers = [None; REGISTERS];
    registers[usize::from(RSP)] = Some(sp);
    let (mut pc, mut frames) = (pc, Vec::new());
    while frames.len() < DEPTH_MAX && !is_late() {
        // A return address may be the one behind the function.
        let at = if frames.is_empty() { pc } else { pc - 1 };
        let Some((number, image, distance)) = memory.image(at) else { break };
        let Some(place) = image.place(at.wrapping_sub(distance), context) else { break };
        frames.push((number, place.start));
        let start = place.start.wrapping_add(distance);
        match caller(memory, place.row, start, &mut registers) {
            Some(next) => pc = next,
            None => break,
        }
    }
    frames
}

/// Replaces the registers by those of the caller, and returns its address.
fn caller(
    memory: &impl Memory,
    row: &UnwindTableRow<usize>,
    start: u64,
    registers: &mut [Option<u64>; REGISTERS],
) -> Option<u64> {
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
    let sp = registers[usize::from(RSP)]?;
    if *register == Register(RBP) && registers[usize::from(RBP)].is_none() {
        registers[usize::from(RBP)] = Some(sp.checked_add(frame_bytes(memory, start, row)?)?);
    }
    let base = (*registers.get(usize::from(register.0))?)?;
    let frame = base.checked_add_signed(*offset)?;
    let saved = |number: u16, value: Option<u64>| match row.register(Register(number)) {
        Some(RegisterRule::Offset(offset)) => memory.word(frame.checked_add_signed(offset)?),
        Some(RegisterRule::SameValue) | None => value,
        Some(_) => None,
    };
    let back = saved(RETURN_ADDRESS, None)?;
    if frame <= sp || !follows_a_call(memory, back) {
        return None;
    }
    let mut callers = [None; REGISTERS];
    for (number, value) in callers.iter_mut().enumerate() {
        *value = saved(number as u16, registers[number]);
    }
    callers[usize::from(RSP)] = Some(frame);
    *registers = callers;
    Some(back)
}

/// The distance from `rsp` to `rbp` in a function that has set up its frame. The table has the
/// registers that it saved, and its first instructions the bytes that it reserved.
fn frame_bytes(memory: &impl Memory, start: u64, row: &UnwindTableRow<usize>) -> Option<u64> {
    let offsets = row.registers().filter_map(|(_, rule)| match rule {
        RegisterRule::Offset(offset) => Some(*offset),
        _ => None,
    });
    // The return address and `rbp` itself are above.
    let saved = offsets.min()?.checked_add(16)?.unsigned_abs();
    let mut code = [0; PROLOGUE_BYTES];
    let reserved = memory.code(start, &mut code).then(|| reserved_by(&code))??;
    Some(saved + reserved)
}

/// The bytes that a function reserves which begins with `push rbp; mov rbp, rsp`. Without `sub rsp`
/// there are none. None if it begins otherwise, or if the frame is aligned.
fn reserved_by(code: &[u8]) -> Option<u64> {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    let code = code.strip_prefix(ENDBR64).unwrap_or(code);
    let code = code.strip_prefix(&[0x55, 0x48, 0x89, 0xe5])?;
    let reserved = (0..code.len()).find_map(|at| match &code[at..] {
        [0x48, 0x83, 0xec, count @ 0..0x80, ..] => Some(Some(u64::from(*count))),
        [0x48, 0x81, 0xec, a, b, c, d, ..] => {
            Some(Some(u64::from(u32::from_le_bytes([*a, *b, *c, *d]))))
        }
        [0x48, 0x83, 0xe4, ..] => Some(None),
        _ => None,
    });
    reserved.unwrap_or(Some(0))
}

/// Whether the instruction before this address is a call.
fn follows_a_call(memory: &impl Memory, back: u64) -> bool {
    let mut code = [0; 7];
    let is_read = back.checked_sub(7).is_some_and(|at| memory.code(at, &mut code));
    is_read && is_call(&code)
}

/// Whether these bytes end with a call: of an address, or of one in a register or in memory.
fn is_call(code: &[u8; 7]) -> bool {
    let indirect = |at: usize| code[at] == 0xff && code[at + 1] & 0x38 == 0x10;
    code[2] == 0xe8 || [0, 1, 3, 4, 5].into_iter().any(indirect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_functions_with_a_frame_pointer() {
        // push rbp; mov rbp, rsp; push r15; mov r13d, edx; sub rsp, 0x28
        let small =
            [0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x41, 0x89, 0xd5, 0x48, 0x83, 0xec, 0x28, 0x90];
        assert_eq!(reserved_by(&small), Some(0x28));
        let large = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x81, 0xec, 0x00, 0x10, 0x00, 0x00];
        assert_eq!(reserved_by(&large), Some(0x1000));
        let none = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x90];
        assert_eq!(reserved_by(&none), Some(0));
        let aligned = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xe0];
        assert_eq!(reserved_by(&aligned), None);
        assert_eq!(reserved_by(&[0x53, 0x48]), None);
        assert_eq!(reserved_by(&[]), None);
    }

    #[test]
    fn calls_are_recognised() {
        assert!(is_call(&[0, 0, 0xe8, 1, 2, 3, 4]));
        assert!(is_call(&[0, 0, 0, 0, 0, 0xff, 0xd0]), "call rax");
        assert!(is_call(&[0, 0xff, 0x15, 1, 2, 3, 4]), "call [rip + 0x04030201]");
        assert!(is_call(&[0, 0, 0, 0, 0xff, 0x50, 0x18]), "call [rax + 24]");
        assert!(!is_call(&[0, 0, 0, 0, 0, 0xff, 0xe0]), "jmp rax");
        assert!(!is_call(&[0x90; 7]));
    }
}
