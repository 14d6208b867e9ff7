//! Transfer of adapters from the training server to a vLLM pool.

use crate::common::{
    runtime,
    tinker_double::TinkerDouble,
    tinker_script as script,
    vllm_double::Vllm,
    vllm_script::{names, settings as pool_settings, short_attempts},
};
use mage_engine::{Trainer, WeightsName};
use mage_remote::{StatusLog, TinkerTrainer, VllmPool, VllmPoolSettings};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

#[test]
fn adapter_is_downloaded_once_for_all_consumers() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let vllm = runtime.block_on(Vllm::start(Duration::ZERO));
    let dir = tempfile::tempdir().unwrap();
    let (adapters, checkpoint) = (dir.path().join("adapters"), dir.path().join("checkpoint"));
    let mut settings = script::settings(&double.url(), &adapters, StatusLog::default());
    settings.calibrate = false;
    // A high tolerance, since the two test doubles have different weights.
    let tolerant = VllmPoolSettings { tolerance: 1e3, ..pool_settings(vec![vllm.url()], short_attempts(), 64).0 };
    let pool = Arc::new(VllmPool::new(tolerant).unwrap());
    let mut trainer = TinkerTrainer::connect(settings, Some(pool)).unwrap();
    script::train_three_steps(&mut trainer);
    let fetched = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&fetched);
    double.override_responses(move |path, _| {
        count.fetch_add(usize::from(path.ends_with("/download")), Ordering::SeqCst);
        None
    });
    // As at the start of a run, and after an update that ends with a checkpoint.
    trainer.publish(&WeightsName::new("reference")).unwrap();
    trainer.publish(&WeightsName::default()).unwrap();
    trainer.save(&checkpoint).unwrap();
    assert_eq!(fetched.load(Ordering::SeqCst), 1);
    assert_eq!(names(&vllm), ["policy@0", "reference@0"]);
    let read = |folder: &std::path::Path| std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    for pushed in vllm.state.adapters.lock().unwrap().values() {
        assert_eq!(read(pushed.as_ref()), read(&checkpoint));
    }
    // If the directory is gone the adapter is downloaded again; older published copies are missing.
    std::fs::remove_dir_all(&adapters).unwrap();
    trainer.save(&dir.path().join("another")).unwrap_err();
    assert_eq!(fetched.load(Ordering::SeqCst), 2);
    assert_eq!(read(&dir.path().join("another")), read(&checkpoint));
}
