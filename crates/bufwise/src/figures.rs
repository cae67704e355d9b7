//! Figures as people read them: three digits and a unit.

/// Bytes, decimal: `512 B`, `87.0 KB`, `6.29 MB`.
pub(crate) fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        ..1e4 => format!("{bytes:.0} B"),
        ..1e6 => format!("{:.1} KB", bytes / 1e3),
        ..1e9 => format!("{:.2} MB", bytes / 1e6),
        _ => format!("{:.2} GB", bytes / 1e9),
    }
}

/// Bit/s: `512.0 kbit/s`, `94.3 Mbit/s`.
pub(crate) fn rate(bits: u64) -> String {
    let bits = bits as f64;
    if bits < 1e6 { format!("{:.1} kbit/s", bits / 1e3) } else { format!("{:.1} Mbit/s", bits / 1e6) }
}
