//! The shared library's name, the versions of its symbols, and that it stays in memory.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo names it");
    let version = |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo names it");
    // Below 1.0 each minor version may break what programs were built against.
    let soname = match &*version("MAJOR") {
        "0" => format!("libdioxide.so.0.{}", version("MINOR")),
        major => format!("libdioxide.so.{major}"),
    };
    for arg in [
        format!("-Wl,-soname,{soname}"),
        // Its threads, and what they leave behind when they end, outlive a dlclose.
        "-Wl,-z,nodelete".into(),
        // rustc passes a list of symbols of its own, and linkers take one list only: see link/ld.bfd.
        format!("-B{here}/link"),
        "-fuse-ld=bfd".into(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=link/ld.bfd");
    println!("cargo:rerun-if-changed=dioxide.map");
}
