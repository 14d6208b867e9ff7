//! Addresses of policies and models: `RUN`, `RUN@latest`, `RUN@best`, `RUN@250`, `RUN/checkpoints/000250`, or a model
//! folder.
//!
//! `RUN` and `RUN@latest` are the last checkpoint, `RUN@250` is the checkpoint after 250 updates. A path that exists
//! takes precedence over an address, so that folder names may contain `@`.

use super::{RunDir, best, checkpoint_path, checkpoints, last_model, saved_updates, verify};
use crate::{Error, Result};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// The model that an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelAddress {
    /// Run directory, if the model is a checkpoint of a run.
    pub run: Option<PathBuf>,
    /// Folder of the model or adapter.
    pub model: PathBuf,
    /// The address, for output.
    pub label: String,
}

impl ModelAddress {
    /// Resolves an address. `None` if the text names neither a run nor a local model folder, such as a Hub name. A path
    /// need not be UTF-8; a name after `@` is.
    pub fn resolve(text: impl AsRef<OsStr>) -> Result<Option<Self>> {
        let path = Path::new(text.as_ref());
        if text.as_ref().is_empty() {
            return Ok(None);
        }
        let label = path.display().to_string();
        let of_run = |run: &Path, model: PathBuf| {
            Ok(Some(ModelAddress { run: Some(run.to_owned()), model, label: label.clone() }))
        };
        if RunDir::is_run(path) {
            return of_run(path, last_model(path)?);
        }
        if let Some((run, name)) = split_checkpoint(path) {
            return of_run(run, checkpoint(run, name)?);
        }
        if path.exists() {
            let is_model = ["config.json", "adapter_config.json"].iter().any(|file| path.join(file).exists());
            return Ok(is_model.then(|| ModelAddress { run: None, model: path.to_owned(), label: label.clone() }));
        }
        let parts = path.to_str().and_then(|text| text.rsplit_once('@'));
        match parts.map(|(run, name)| (Path::new(run), name)) {
            Some((run, name)) if RunDir::is_run(run) => of_run(run, checkpoint(run, name)?),
            _ => Ok(None),
        }
    }

    /// Compares the files of a run's checkpoint with its manifest, so that damaged weights are not measured.
    pub fn verify(&self) -> Result<()> {
        match self.run {
            Some(_) => verify(&self.model).map(drop),
            None => Ok(()),
        }
    }
}

/// Run and checkpoint name of `RUN/checkpoints/NAME`.
fn split_checkpoint(path: &Path) -> Option<(&Path, &str)> {
    if path.parent().is_some_and(|folder| folder.as_os_str().is_empty()) {
        // A name without a folder, within `RUN/checkpoints`.
        let here = std::env::current_dir().ok()?;
        let is_run = here.ends_with("checkpoints") && path.is_dir() && RunDir::is_run(Path::new(".."));
        return is_run.then_some((Path::new(".."), path.file_name()?.to_str()?));
    }
    let folder = path.parent().filter(|folder| folder.file_name().is_some_and(|name| name == "checkpoints"))?;
    // Without a parent folder, the run is the current directory.
    let run = folder.parent().map(|run| if run.as_os_str().is_empty() { Path::new(".") } else { run });
    Some((run.filter(|run| RunDir::is_run(run))?, path.file_name()?.to_str()?))
}

/// The folder of a checkpoint: `best`, `latest` or a number of updates.
fn checkpoint(run: &Path, name: &str) -> Result<PathBuf> {
    let error = |problem: String| Error::Run { path: run.to_owned(), problem };
    if name == "latest" {
        return last_model(run);
    }
    let update = match name {
        "best" => match best(run)? {
            Some(best) => best.update,
            None => return Err(error("the run has no best checkpoint yet: best.json is missing".to_owned())),
        },
        _ => name
            .parse()
            .map_err(|_| error(format!("unknown checkpoint `{name}`; expected best, latest or a number of updates")))?,
    };
    let available = checkpoints(run)?;
    if available.contains(&update) {
        return Ok(run.join(checkpoint_path(update)));
    }
    let list = match available.as_slice() {
        [] => "the run has none".to_owned(),
        all => format!("available: {}", all.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    };
    Err(error(match saved_updates(run).contains(&update) {
        true => format!("the checkpoint of update {update} was pruned (checkpoint.keep); {list}"),
        false => format!("no checkpoint of update {update}; {list}"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{recipe::Recipe, run_dir::TrainProgress};
    use std::fs;

    /// A run with checkpoints of these updates; that of update 2 was pruned.
    fn run(path: &Path, updates: &[u64]) {
        let population = mage_env::Registry::builtin().get("kuhn").unwrap().default_population();
        let mut run = RunDir::create(path, &Recipe::default(), &population).unwrap();
        for update in updates {
            run.checkpoint(&TrainProgress { update: *update, ..TrainProgress::default() }, |_| Ok(())).unwrap();
        }
        run.log("{\"event\":\"saved\",\"update\":2}");
    }

    fn model(text: &str) -> (Option<PathBuf>, PathBuf) {
        let address = ModelAddress::resolve(text).unwrap().unwrap();
        assert_eq!(address.label, text);
        (address.run, address.model)
    }

    #[test]
    fn every_form_of_address_is_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kuhn-1");
        run(&path, &[0, 4, 12]);
        RunDir::open(&path).unwrap().write_best(4, 0.5).unwrap();
        let text = path.to_str().unwrap();
        for (suffix, update) in [
            ("", 12),
            ("/", 12),
            ("@latest", 12),
            ("@best", 4),
            ("@4", 4),
            ("@000004", 4),
            ("/@0", 0),
            ("/checkpoints/000004", 4),
            ("/checkpoints/000004/", 4),
        ] {
            let (run, model) = model(&format!("{text}{suffix}"));
            assert_eq!(model, path.join(checkpoint_path(update)), "{suffix}");
            assert_eq!(run.unwrap(), path, "{suffix}");
        }
    }

    #[test]
    fn model_folders_and_folders_with_an_at_sign_take_precedence() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        run(&path("kuhn"), &[0]);
        run(&path("kuhn@best"), &[3]);
        let folder = |name: &str| path(name).to_str().unwrap().to_owned();
        assert_eq!(model(&folder("kuhn@best")).1, path("kuhn@best").join(checkpoint_path(3)));
        assert_eq!(model(&folder("kuhn@best@3")).1, path("kuhn@best").join(checkpoint_path(3)));
        for file in ["config.json", "adapter_config.json"] {
            fs::create_dir_all(path("kuhn@0")).unwrap();
            fs::write(path("kuhn@0").join(file), "{}").unwrap();
            assert_eq!(model(&folder("kuhn@0")), (None, path("kuhn@0")));
            fs::remove_dir_all(path("kuhn@0")).unwrap();
        }
        // Neither a run nor a model: the caller decides.
        fs::create_dir(path("other")).unwrap();
        for text in [&*folder("other"), &*folder("other@best"), &*folder("none@best"), "org/name@main", "bayes"] {
            assert_eq!(ModelAddress::resolve(text).unwrap(), None, "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn paths_that_are_not_utf8_are_resolved() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OsStr::from_bytes(b"kuhn-\xff"));
        run(&path, &[3]);
        let address = ModelAddress::resolve(&path).unwrap().unwrap();
        assert_eq!(address.model, path.join(checkpoint_path(3)));
        assert!(address.label.ends_with("kuhn-\u{fffd}"), "{}", address.label);
    }

    #[test]
    fn a_checkpoint_that_differs_from_its_manifest_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kuhn-1");
        run(&path, &[3]);
        let address = ModelAddress::resolve(&path).unwrap().unwrap();
        address.verify().unwrap();
        let file = address.model.join("progress.json");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace('3', "4")).unwrap();
        let error = address.verify().unwrap_err().to_string();
        assert!(error.contains("progress.json: the contents do not match the manifest"), "{error}");
    }

    #[test]
    fn an_unknown_checkpoint_is_refused_with_the_available_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kuhn-1");
        run(&path, &[4, 12]);
        let error =
            |suffix: &str| ModelAddress::resolve(format!("{}{suffix}", path.display())).unwrap_err().to_string();
        assert!(error("@5").ends_with("no checkpoint of update 5; available: 4, 12"), "{}", error("@5"));
        assert!(error("/checkpoints/000005").contains("available: 4, 12"));
        assert!(error("@2").ends_with("update 2 was pruned (checkpoint.keep); available: 4, 12"), "{}", error("@2"));
        assert!(error("@last").contains("unknown checkpoint `last`; expected best, latest or a number"));
        assert!(error("@best").contains("best.json is missing"));
        RunDir::open(&path).unwrap().write_best(2, 0.5).unwrap();
        assert!(error("@best").contains("was pruned"));
        fs::remove_dir_all(path.join("checkpoints")).unwrap();
        fs::create_dir(path.join("checkpoints")).unwrap();
        assert!(error("@4").ends_with("no checkpoint of update 4; the run has none"), "{}", error("@4"));
        assert!(error("").contains("no checkpoint yet") && error("@latest").contains("no checkpoint yet"));
    }
}
