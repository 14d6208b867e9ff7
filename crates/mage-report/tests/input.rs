//! Files that are damaged, missing or large, and text that is hostile.

use crate::common::{INJECTION, four_records, page, record, report_of, summary, write};
use mage_core::Trajectory;
use mage_env::OpponentSpec;
use mage_report::{ReportLimits, csv, figures, load_report, markdown, tables};
use std::fs;

#[test]
fn model_output_cannot_inject_markup() {
    let mut records = four_records();
    records[0].task.opponent = Some(OpponentSpec::of_kind("<svg onload=alert(2)>"));
    let page = page(&report_of(&records, None));
    assert!(!page.contains("<img"), "only tags of the page");
    assert!(!page.contains("<svg onload"));
    assert_eq!(page.matches("</script>").count(), 2, "only the two script elements of the page");
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    let completions = data["transcripts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["transcript"]["episodes"][0]["steps"][0]["completion"]);
    assert!(
        completions.clone().count() == 4 && completions.into_iter().all(|c| c == INJECTION),
        "completions are embedded unchanged"
    );
    for external in ["http://", "https://", "//cdn", "@import", "url("] {
        let rest = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!rest.contains(external), "{external}");
    }
}

#[test]
fn a_summary_substitutes_for_missing_records() {
    let records = four_records();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.json");
    fs::write(&file, serde_json::to_string_pretty(&summary(&records, "runs/x", Some("memento"), true)).unwrap())
        .unwrap();
    let report = load_report(&[file], ReportLimits::default()).unwrap();
    assert_eq!(report.results[0].method, "Memento");
    assert_eq!(report.results[0].curve[1].pass.value, Some(0.5));
    assert!(report.notes[0].contains("read from the summary"));
}

#[test]
fn damaged_inputs_are_skipped_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    write(&path, &four_records());
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[1] = "{\"key\":12}";
    fs::write(&path, lines.join("\n") + "\n{\"key\":{\"pan").unwrap();
    fs::write(dir.path().join("broken.json"), "{\n \"format\": 1, \"env\": \"kuhn\", \"split\": ").unwrap();
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    assert_eq!(report.results[0].meta_episodes, 3);
    assert!(report.notes.iter().any(|n| n.contains("line 2")), "{:?}", report.notes);
    assert!(report.notes.iter().any(|n| n.contains("broken.json")), "{:?}", report.notes);
}

#[test]
fn empty_inputs_give_an_empty_report() {
    let dir = tempfile::tempdir().unwrap();
    assert!(load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap().is_empty());
    fs::write(dir.path().join("r.jsonl"), "").unwrap();
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    assert!(report.is_empty());
    assert!(page(&report).contains("No training runs and no evaluations."), "the page says so");
    assert!(load_report(&[dir.path().join("nowhere")], ReportLimits::default()).is_err());
}

#[test]
fn report_size_is_limited() {
    let records: Vec<Trajectory> = (0..200).map(|i| record(i, "aggressive", 0, &[1.0, -1.0])).collect();
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("r.jsonl"), &records);
    let limits = ReportLimits { transcripts: 10, text: 5, bytes: 2500 };
    let report = load_report(&[dir.path().to_owned()], limits).unwrap();
    assert_eq!(report.results[0].meta_episodes, 200, "all meta-episodes are evaluated");
    assert!(!report.transcripts.is_empty() && report.transcripts.len() < 10);
    assert!(report.transcripts[0].episodes[0].steps[0].completion.contains("more characters"));
    let omitted = 200 - report.transcripts.len();
    assert!(report.notes.iter().any(|n| n.starts_with(&format!("{omitted} more meta-episodes"))), "{:?}", report.notes);
}

#[test]
fn foreign_text_brings_no_formulas_and_no_control_characters() {
    let mut records = four_records();
    records[0].task.opponent = Some(OpponentSpec::of_kind("\u{1b}[31m\u{0}=1+1\u{9b}"));
    records[1].task.opponent = Some(OpponentSpec::of_kind("\u{0}@SUM(A1)"));
    let report = report_of(&records, Some(summary(&records, "-1+1", Some("react"), true)));
    let (csv, text) = (csv(&report), markdown(&report, &tables(&report), &figures(&report)));
    let control = |c: char| c.is_control() && c != '\n';
    assert!(!csv.contains(control) && !text.contains(control));
    assert!(csv.contains(",'-1+1,") && csv.contains(",'@SUM(A1),") && text.contains("[31m=1+1"), "{csv}");
    let formula = |cell: &&str| cell.starts_with(['=', '+', '-', '@']) && cell.parse::<f64>().is_err();
    assert_eq!(csv.split([',', '\n']).find(formula), None);
}

/// A zstd frame of one line of `blocks` × 128 KiB.
fn bomb(blocks: usize) -> Vec<u8> {
    const BLOCK: u32 = 128 << 10;
    // Magic number, a header without a content size, and a window of one block.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    for n in 1..=blocks {
        // Size, type (a repeated byte), and whether it is the last block.
        let header = BLOCK << 3 | 1 << 1 | u32::from(n == blocks);
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.push(b'{');
    }
    frame
}

#[test]
fn long_lines_are_not_read_into_memory() {
    let dir = tempfile::tempdir().unwrap();
    let notes = |name: &str, contents: &[u8]| {
        let run = dir.path().join(name.replace('/', "-"));
        fs::create_dir_all(run.join("trajectories")).unwrap();
        fs::write(run.join("recipe.resolved.toml"), mage_train::recipe::Recipe::default().to_toml()).unwrap();
        fs::write(run.join(name), contents).unwrap();
        load_report(&[run], ReportLimits::default()).unwrap().notes.join("\n")
    };
    let packed = bomb(600);
    assert!(packed.len() < 3000, "75 MiB in {} bytes", packed.len());
    for (name, contents) in [("trajectories/000001.jsonl.zst", packed), ("metrics.jsonl", vec![b'{'; 65 << 20])] {
        let notes = notes(name, &contents);
        assert!(notes.contains(name) && notes.contains("line 1 is longer than 64 MiB"), "{name}: {notes}");
    }
}
