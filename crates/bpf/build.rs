//! Compiles the kernel's side for BPF, and its rules for the host as well.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

const SOURCES: &str = "src/bpf";

fn main() {
    println!("cargo::rerun-if-changed={SOURCES}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Err(error) = SkeletonBuilder::new()
        .source(Path::new(SOURCES).join("flow.bpf.c"))
        .clang_args(include_arguments())
        .build_and_generate(out.join("flow.skel.rs"))
    {
        // Cargo shows what a build script prints when it fails.
        println!("cargo::error=cannot compile {SOURCES}/flow.bpf.c (needs clang and libelf-dev): {error:#}");
    }
    build_rules(&out);
}

/// The rules for the host: a static library, or with `BUFWISE_RULES_SHARED` a shared object that `scripts/mutants` replaces.
fn build_rules(out: &Path) {
    println!("cargo::rerun-if-env-changed=BUFWISE_RULES_SHARED");
    let mut rules = cc::Build::new();
    rules.file(Path::new(SOURCES).join("rules.c")).std("gnu11").warnings(true);
    if env::var_os("CARGO_FEATURE_MODEL").is_some() {
        rules.file(Path::new(SOURCES).join("host.c"));
    }
    if env::var_os("BUFWISE_RULES_SHARED").is_none() {
        return rules.compile("bufwise_rules");
    }
    let objects = rules.pic(true).compile_intermediates();
    let linked = rules
        .get_compiler()
        .to_command()
        .arg("-shared")
        .arg("-o")
        .arg(out.join("libbufwise_rules.so"))
        .args(objects)
        .status();
    assert!(linked.is_ok_and(|status| status.success()), "cannot link the rules as a shared object");
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=dylib=bufwise_rules");
}

/// Debian keeps asm/types.h in a folder per architecture, where clang for BPF does not look. Any architecture's will do: BPF's
/// types are the same on all.
fn include_arguments() -> Vec<String> {
    let target = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let folders = [target.as_str(), env::consts::ARCH].map(|arch| format!("/usr/include/{arch}-linux-gnu"));
    let mut arguments = vec!["-Wall".to_owned(), "-Werror".to_owned()];
    if let Some(folder) = folders.iter().find(|folder| Path::new(folder).is_dir()) {
        arguments.push(format!("-I{folder}"));
    }
    arguments
}
