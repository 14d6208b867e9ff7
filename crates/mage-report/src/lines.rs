//! Bounded reading of JSON files.
//!
//! A compressed file of a few kilobytes can hold gigabytes: lines and files have limits, and no more than one line is in
//! memory.

use serde::de::DeserializeOwned;
use std::{
    fs::File,
    io::{BufRead, Read},
    path::Path,
};

/// Largest length of a line, and of a file that is one JSON value, in bytes.
const MAX_LINE: u64 = 64 << 20;
/// Largest length of a file of lines in bytes, after decompression.
const MAX_FILE: u64 = 4 << 30;

/// Calls `each` with the number and the text of every complete line: one that is still being written has no line break
/// yet. Ends at the first problem, which is returned.
pub(super) fn read_lines(file: impl BufRead, mut each: impl FnMut(u64, &str)) -> Result<(), String> {
    let mut file = file.take(MAX_FILE);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        // One byte more than the limit tells a longer line.
        file.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line).map_err(|e| format!("line {number}: {e}"))?;
        if line.last() == Some(&b'\n') {
            let text = str::from_utf8(&line).map_err(|e| format!("line {number}: {e}"))?;
            each(number, text);
        } else if line.len() as u64 > MAX_LINE {
            return Err(format!("line {number} is longer than {} MiB", MAX_LINE >> 20));
        } else if file.limit() == 0 {
            return Err(format!("line {number}: the file is longer than {} GiB", MAX_FILE >> 30));
        } else {
            break;
        }
    }
    Ok(())
}

/// Reads a file that is one JSON value.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let mut text = Vec::new();
    let file = File::open(path).map_err(|e| e.to_string())?;
    file.take(MAX_LINE + 1).read_to_end(&mut text).map_err(|e| e.to_string())?;
    match text.len() as u64 > MAX_LINE {
        true => Err(format!("the file is longer than {} MiB", MAX_LINE >> 20)),
        false => serde_json::from_slice(&text).map_err(|e| e.to_string()),
    }
}
