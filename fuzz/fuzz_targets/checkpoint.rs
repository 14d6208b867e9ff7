//! Fuzz target: parsing a safetensors header never panics and never accepts offsets outside the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_native::{Config, parse_header};

fuzz_target!(|input: (&[u8], u32)| {
    let (header, len) = (input.0, u64::from(input.1));
    if let Ok(entries) = parse_header(header, len) {
        for (name, entry) in entries {
            assert!(entry.start <= entry.end && entry.end <= len, "{name}");
            let count: usize = entry.shape.iter().product();
            let bytes = entry.end - entry.start;
            assert!(bytes == 4 * count as u64 || bytes == 2 * count as u64, "{name}");
        }
    }
    if let Ok(text) = std::str::from_utf8(header)
        && let Ok(config) = Config::parse(text)
    {
        assert!(config.check().is_ok());
    }
});
