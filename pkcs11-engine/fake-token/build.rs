//! Links the module so that it stays loaded when a program closes it.
//!
//! aws-lc leaves a destructor with each thread that used it: after dlclose the thread's end would jump to nowhere.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
