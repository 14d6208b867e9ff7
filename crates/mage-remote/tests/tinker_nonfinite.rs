//! Non-finite values from a server: its state is discarded and no step uses them.

use crate::common::{
    capture_log, runtime,
    tinker_double::{Misbehaviour, TinkerDouble},
    tinker_script::{self as script, ScriptResult},
};
use mage_engine::{Hint, Loss, Objective, Trainer, WeightsName};
use mage_remote::{StatusLog, TinkerTrainer};
use tokio::runtime::Runtime;

/// Result and weight history of the script without faults.
fn without_faults(runtime: &Runtime) -> (ScriptResult, Vec<u64>) {
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let result =
        script::run_script(&script::settings(&double.url(), dir.path(), StatusLog::default()), dir.path()).unwrap();
    let history = double.state.lock().unwrap().last_history.clone();
    (result, history)
}

#[test]
fn nonfinite_gradient_is_discarded_and_retried() {
    let runtime = runtime();
    let (expected, history) = without_faults(&runtime);
    // Before the first save, after it, and after a checkpoint was loaded. The first gradients are computed on two
    // models.
    for at in 1..=7 {
        let double = runtime.block_on(TinkerDouble::start(Some(Misbehaviour::NonFiniteGradient(at, 1))));
        let (status_log, log_lines) = capture_log();
        let dir = tempfile::tempdir().unwrap();
        let mut settings = script::settings(&double.url(), dir.path(), status_log);
        settings.calibrate = false;
        assert_eq!(script::run_script(&settings, dir.path()).unwrap(), expected, "at gradient {at}");
        assert_eq!(double.state.lock().unwrap().last_history, history, "at gradient {at}");
        let log_lines = log_lines.lock().unwrap();
        assert_eq!(log_lines.len(), 1, "{log_lines:?}");
        let rejected = "returned invalid log-prob NaN (sequence 0 of 2, token 2 of 6";
        let restored = ") for forward_backward, which was discarded; restoring ";
        match at {
            2 | 7 => assert!(log_lines[0].contains("a replayed gradient differs by inf; retrying"), "{log_lines:?}"),
            _ => assert!(log_lines[0].contains(rejected) && log_lines[0].contains(restored), "{log_lines:?}"),
        }
    }
}

#[test]
fn repeated_nonfinite_gradient_fails_before_a_step_and_the_checkpoint_resumes() {
    let runtime = runtime();
    let (expected, history) = without_faults(&runtime);
    // The first gradient is computed twice, so the fifth follows the checkpoint.
    let double = runtime.block_on(TinkerDouble::start(Some(Misbehaviour::NonFiniteGradient(5, 2))));
    let dir = tempfile::tempdir().unwrap();
    let mut settings = script::settings(&double.url(), dir.path(), StatusLog::default());
    settings.calibrate = false;
    let error = script::run_script(&settings, dir.path()).unwrap_err();
    assert_eq!(error.hints(), [Hint::ResumeRun, Hint::LowerLearningRate]);
    let e = error.to_string();
    for words in [
        "forward_backward: invalid log-prob NaN (sequence 0 of 2, token 2 of 6; advantage 0.5,",
        ", and the same again after restoring the last saved state. No step was taken with it",
        "checkpoints are unchanged",
    ] {
        assert!(e.contains(words), "{e}");
    }
    let mut resumed = TinkerTrainer::connect(settings, None).unwrap();
    resumed.load(&dir.path().join("checkpoint")).unwrap();
    let report = resumed.forward_backward(&script::batch(0.5), &Loss::of(Objective::ppo(0.2, 0.3))).unwrap();
    let stepped = resumed.optim_step(&script::step()).unwrap();
    assert_eq!(
        (report.loss, stepped.grad_norm, stepped.steps),
        (expected.losses[4], expected.norms[4], expected.steps)
    );
    assert_eq!(double.state.lock().unwrap().last_history, history);
}

#[test]
fn no_step_follows_a_nonfinite_gradient() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(Some(Misbehaviour::NonFiniteGradient(1, 2))));
    let dir = tempfile::tempdir().unwrap();
    let mut settings = script::settings(&double.url(), dir.path(), StatusLog::default());
    settings.calibrate = false;
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::CrossEntropy)).unwrap_err();
    let computed = double.state.lock().unwrap().computed;
    let e = trainer.optim_step(&script::step()).unwrap_err().to_string();
    assert!(e.contains("the model is lost"), "{e}");
    assert_eq!(double.state.lock().unwrap().computed, computed);
}

#[test]
fn step_with_a_nonfinite_norm_is_undone() {
    let runtime = runtime();
    let (expected, _) = without_faults(&runtime);
    let (imitate, ppo) = (Loss::of(Objective::CrossEntropy), Loss::of(Objective::ppo(0.2, 0.3)));
    // Final weight history; a skipped step is repeated.
    let learn = |misbehaviour| {
        let double = runtime.block_on(TinkerDouble::start(misbehaviour));
        let dir = tempfile::tempdir().unwrap();
        let mut settings = script::settings(&double.url(), dir.path(), StatusLog::default());
        settings.calibrate = false;
        let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
        let mut taken_back = Vec::new();
        for (at, (advantage, loss)) in [(1.0, &imitate), (1.0, &ppo), (-1.0, &ppo)].into_iter().enumerate() {
            loop {
                let report = trainer.forward_backward(&script::batch(advantage), loss).unwrap();
                assert_eq!(report.loss, expected.losses[at], "{misbehaviour:?}: the weights are those before the step");
                let stepped = trainer.optim_step(&script::step()).unwrap();
                if stepped.skipped.is_none() {
                    assert_eq!(
                        (stepped.grad_norm, stepped.steps),
                        (expected.norms[at], at as u64 + 1),
                        "{misbehaviour:?}"
                    );
                    break;
                }
                assert!(stepped.grad_norm.is_nan() && stepped.skipped_steps == 1, "{stepped:?}");
                taken_back.push(at);
            }
            if at == 1 {
                trainer.publish(&WeightsName::default()).unwrap();
            }
        }
        let history = double.state.lock().unwrap().last_history.clone();
        (history, taken_back)
    };
    let (history, none) = learn(None);
    assert!(none.is_empty());
    // The first step is taken on two models and counts only once both agree.
    for taken in 1..=2 {
        assert_eq!(learn(Some(Misbehaviour::NullNorm(taken))), (history.clone(), vec![]));
    }
    // The third step follows a saved state.
    for at in 1..3 {
        assert_eq!(learn(Some(Misbehaviour::NullNorm(at + 2))), (history.clone(), vec![at]));
    }
}
