//! Linker arguments: the shared library's name, its symbol versions, and no unloading.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo names it");
    let version =
        |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo names it");
    // Below 1.0 each minor version may break programs built against the previous one.
    let soname = match &*version("MAJOR") {
        "0" => format!("libdioxide.so.0.{}", version("MINOR")),
        major => format!("libdioxide.so.{major}"),
    };
    for arg in [
        format!("-Wl,-soname,{soname}"),
        // Its threads, and their destructors, outlive a dlclose.
        "-Wl,-z,nodelete".into(),
        // rustc passes its own list of symbols, and linkers accept only one: see link/ld.bfd.
        format!("-B{here}/link"),
        "-fuse-ld=bfd".into(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=link/ld.bfd");
    println!("cargo:rerun-if-changed=dioxide.map");
}
