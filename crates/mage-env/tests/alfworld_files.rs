//! Errors about missing or invalid ALFWorld data. These tests need no data.

use mage_env::{
    EnvId, EnvSpec, OptionMap, Seed, Task,
    alfworld::{AlfworldSpec, GameDataset, TaskType},
};

fn task(options: OptionMap) -> Task {
    Task { env: EnvId::new("alfworld"), options, opponent: None, seat: 0, seed: Seed::new(7) }
}

fn official(folder: &std::path::Path) -> OptionMap {
    OptionMap::default().with("source", "official").with("data", folder.to_str().unwrap())
}

#[test]
fn directories_without_games_report_the_expected_layout() {
    let folder = tempfile::tempdir().unwrap();
    let error = |options: OptionMap| AlfworldSpec::default().build(&task(options)).err().unwrap().to_string();
    assert!(error(official(folder.path())).contains("neither json_2.1.1/<split>"));
    assert!(error(official(&folder.path().join("nowhere"))).contains("cannot read"));
    std::fs::create_dir_all(folder.path().join("json_2.1.1/train")).unwrap();
    assert!(error(official(folder.path())).contains("no games of split `train`"));
    assert!(error(official(folder.path()).with("split", "valid_seen")).contains("valid_seen"));
    assert!(error(OptionMap::default().with("skip_bad", true)).contains("set source = \"official\""));
    assert!(error(OptionMap::default().with("tasks", vec!["dance"])).contains("not `dance`"));
    assert!(error(OptionMap::default().with("tasks", "dance")).contains("not `dance`"));
    assert!(error(OptionMap::default().with("tasks", 2)).contains("must be a task type or a list of task types"));
}

#[test]
fn options_select_one_or_several_task_types() {
    let kinds = |options: OptionMap| -> std::collections::BTreeSet<TaskType> {
        let world = |i| AlfworldSpec::default().world(&Task { seed: Seed::new(i), ..task(options.clone()) });
        (0..40).map(|i| world(i).unwrap().goal().kind).collect()
    };
    assert_eq!(kinds(OptionMap::default().with("tasks", "heat")), [TaskType::Heat].into());
    let two = kinds(OptionMap::default().with("tasks", vec!["look", "two"]));
    assert_eq!(two, [TaskType::Look, TaskType::Two].into());
    assert_eq!(kinds(OptionMap::default()), TaskType::ALL.into());
}

#[test]
fn invalid_game_files_are_named_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let game = folder.path().join("json_2.1.1/train/pick_and_place_simple-Mug-None-Desk-301/trial_T1");
    std::fs::create_dir_all(&game).unwrap();
    std::fs::write(game.join("game.tw-pddl"), "{\"pddl_domain\": \"(define (domain blocks))\"").unwrap();
    std::fs::write(game.join("traj_data.json"), "{}").unwrap();
    let env_spec = AlfworldSpec::default();
    let error = env_spec.build(&task(official(folder.path()))).err().unwrap().to_string();
    assert!(error.contains("trial_T1") && error.contains("game.tw-pddl") && error.contains("line 1"), "{error}");
    let error = env_spec.build(&task(official(folder.path()).with("skip_bad", true))).err().unwrap().to_string();
    assert!(error.contains("no game of split `train`"), "{error}");
    let error = env_spec.conform(&game.join("traj_data.json"), Some(folder.path())).unwrap_err().to_string();
    assert!(error.contains("line 1: not a recorded episode"), "{error}");
}

#[test]
fn invalid_archives_are_named_in_errors() {
    for (name, bytes) in [("a.tar.xz", &b"not xz"[..]), ("b.tar.zst", b"not zstd"), ("c.tar", &[7; 2000])] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let error = GameDataset::open(folder.path()).unwrap().split("train").err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn links_that_lead_in_circles_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let split = folder.path().join("json_2.1.1/train");
    std::fs::create_dir_all(&split).unwrap();
    // Followed without a check, two of them give 2^40 paths.
    for name in ["one", "two"] {
        std::os::unix::fs::symlink(".", split.join(name)).unwrap();
    }
    let error = GameDataset::open(folder.path()).unwrap().split("train").err().unwrap().to_string();
    assert!(error.contains("remove the link") && error.contains("train"), "{error}");
}

#[test]
fn archives_with_overlong_paths_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, name) in [(tar::EntryType::GNULongName, "long.tar"), (tar::EntryType::XHeader, "pax.tar")] {
        let mut archive = tar::Builder::new(Vec::new());
        let path = vec![b'a'; 2 << 20];
        for (kind, content) in [(kind, &path[..]), (tar::EntryType::Regular, b"")] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append(&header, content).unwrap();
        }
        let file = folder.path().join(name);
        std::fs::write(&file, archive.into_inner().unwrap()).unwrap();
        let error = GameDataset::open(&file).unwrap().split("train").err().unwrap().to_string();
        assert!(error.contains(name) && error.contains("too large"), "{error}");
    }
}

#[test]
fn recordings_name_games_below_the_data_directory_only() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("json_2.1.1/train")).unwrap();
    let golden = folder.path().join("golden.jsonl");
    for game in ["/etc/passwd", "json_2.1.1/../../secret", "../secret"] {
        std::fs::write(&golden, format!("{{\"game\": \"{game}\", \"steps\": []}}\n")).unwrap();
        let error = AlfworldSpec::default().conform(&golden, Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains(game) && error.contains("not a path below the data directory"), "{error}");
    }
}
