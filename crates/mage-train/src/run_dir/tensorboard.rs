//! TensorBoard event files.
//!
//! Event files are a sequence of framed records: length, masked checksum of the length, payload, masked checksum of the
//! payload. A payload is a protocol-buffer `Event` with a step, a wall time and scalar values; both formats are public
//! and small enough to write by hand.

use std::sync::LazyLock;

/// One event: scalars at a step.
pub fn event(wall_time: f64, step: u64, scalars: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in scalars {
        let mut one = Vec::new();
        field_bytes(&mut one, 1, tag.as_bytes());
        key(&mut one, 2, 5);
        one.extend((*value as f32).to_le_bytes());
        field_bytes(&mut summary, 1, &one);
    }
    let mut event = header(wall_time);
    key(&mut event, 2, 0);
    varint(&mut event, step);
    field_bytes(&mut event, 5, &summary);
    frame(&event)
}

/// First event of a file.
pub fn file_header(wall_time: f64) -> Vec<u8> {
    let mut event = header(wall_time);
    field_bytes(&mut event, 3, b"brain.Event:2");
    frame(&event)
}

fn header(wall_time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, 1, 1);
    event.extend(wall_time.to_le_bytes());
    event
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let mut out = length.to_vec();
    out.extend(masked(&length).to_le_bytes());
    out.extend(payload);
    out.extend(masked(payload).to_le_bytes());
    out
}

fn key(out: &mut Vec<u8>, field: u64, wire: u64) {
    varint(out, field << 3 | wire);
}

fn field_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    key(out, field, 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// The format's checksum: CRC-32C, rotated and shifted so that a checksum of checksums differs from them.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    static TABLE: LazyLock<[u32; 256]> = LazyLock::new(|| {
        std::array::from_fn(|i| (0..8).fold(i as u32, |c, _| if c & 1 == 1 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 }))
    });
    !bytes.iter().fold(!0, |c, b| TABLE[usize::from(c as u8 ^ b)] ^ c >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_matches_the_vectors_of_rfc_3720() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn event_bytes_match_the_record_format_and_protobuf_encoding() {
        let bytes = event(1.5, 300, &[("a/b", 0.5)]);
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(bytes.len(), 8 + 4 + length + 4);
        let payload = &bytes[12..12 + length];
        assert_eq!(&payload[..9], [&[0x09][..], &1.5_f64.to_le_bytes()].concat());
        assert_eq!(&payload[9..12], [0x10, 0xac, 0x02]);
        assert_eq!(
            &payload[12..],
            [&[0x2a, 12, 0x0a, 10, 0x0a, 3][..], b"a/b", &[0x15], &0.5_f32.to_le_bytes()].concat()
        );
        assert_eq!(bytes[12 + length..], masked(payload).to_le_bytes());
    }
}
