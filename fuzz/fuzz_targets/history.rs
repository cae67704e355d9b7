#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| bufwise_fuzz::host::history(data));
