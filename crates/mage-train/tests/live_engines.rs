//! Comparison of the embedded engine with live servers: SkyRL at `MAGE_TINKER_URL` and vLLM at `MAGE_VLLM_URL`, both
//! with the model in `MAGE_ENGINE_MODEL`, as started by `conformance/engines/run.py`. Ignored if these are not
//! set.

use futures_executor::block_on;
use mage_engine::{Loss, Objective, OptimStep, PerToken, Sampler, ScoreRequest, TokenForest, Trainer};
use mage_native::{EngineOptions, NativeAdapter, NativeModel};
use mage_remote::{
    Fingerprint, StatusLog, Timeouts, TinkerServer, TinkerSettings, TinkerTrainer, VllmPool, VllmPoolSettings,
    tinker::{SdkVersion, TinkerBackend},
};
use mage_testing::variable;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Variables with the addresses of SkyRL and vLLM and the folder of their model.
pub(crate) const ENGINES: [&str; 3] = ["MAGE_TINKER_URL", "MAGE_VLLM_URL", "MAGE_ENGINE_MODEL"];

/// Addresses of SkyRL and vLLM, and the folder of the model.
fn engines() -> (String, String, PathBuf) {
    let [tinker, vllm, model] = ENGINES.map(|name| variable(name).expect("required"));
    (tinker, vllm, model.into())
}

fn trainer(url: &str, model: &Path, vocab_size: usize, adapters: &Path) -> TinkerTrainer {
    let settings = TinkerSettings {
        server: TinkerServer {
            url: url.to_owned(),
            sdk_version: SdkVersion::default(),
            key: None,
            timeouts: Timeouts::default(),
            status_log: mage_train::status_log(|line| eprintln!("{line}")),
        },
        backend: TinkerBackend::Jax,
        base_model: model.file_name().unwrap().to_string_lossy().into_owned(),
        adapter_base_name: model.display().to_string(),
        lora_rank: 8,
        seed: 7,
        vocab_size,
        max_seq_len: 256,
        adapter_dir: adapters.to_owned(),
        tolerance: 1e-4,
        calibrate: false,
    };
    TinkerTrainer::connect(settings, None).unwrap()
}

/// A pool of one server.
fn pool(url: String, vocab_size: usize) -> VllmPool {
    VllmPool::new(VllmPoolSettings {
        servers: vec![url],
        model: "tiny".to_owned(),
        api_key: None,
        max_in_flight: 8,
        vocab_size,
        max_seq_len: 256,
        tolerance: 1e-4,
        keep_versions: 2,
        timeouts: Timeouts::default(),
        request_timeout: std::time::Duration::from_secs(600),
        status_log: StatusLog::default(),
    })
    .unwrap()
}

/// Log-probabilities of the fixed sequence in the embedded engine, and the vocabulary size.
fn native(model: &Path) -> (Fingerprint, usize) {
    let model = NativeModel::open(model).unwrap();
    let vocabulary = model.config().vocab_size;
    let sampler = model.sampler(EngineOptions::default()).unwrap();
    let request = ScoreRequest { tokens: Fingerprint::tokens(vocabulary), from: 1, ..ScoreRequest::default() };
    (Fingerprint(block_on(sampler.score(request)).unwrap().logprobs), vocabulary)
}

pub(crate) fn all_engines_agree_on_log_probabilities() {
    let (tinker, vllm, model) = engines();
    let dir = tempfile::tempdir().unwrap();
    let (ours, vocabulary) = native(&model);
    let skyrl = trainer(&tinker, &model, vocabulary, dir.path()).fingerprint().unwrap();
    let runtime = mage_train::train::runtime(1).unwrap();
    let vllm = runtime.block_on(pool(vllm.clone(), vocabulary).base_fingerprint(&vllm)).unwrap();
    eprintln!("SkyRL {:.1e}, vLLM {:.1e} from native", ours.distance(&skyrl), ours.distance(&vllm));
    // Each is within 1e-5 of a 64-bit reference (checked by conformance/engines/run.py), so any two differ by at most
    // 2e-5.
    assert!(ours.distance(&skyrl) < 2e-5 && ours.distance(&vllm) < 2e-5, "{ours:?}\n{skyrl:?}\n{vllm:?}");
    if let Some(file) = variable("MAGE_FINGERPRINTS_OUT") {
        let all = BTreeMap::from([("native", ours), ("SkyRL", skyrl), ("vLLM", vllm)]);
        std::fs::write(file, serde_json::to_string(&all).unwrap()).unwrap();
    }
}

pub(crate) fn one_update_changes_the_adapter_as_in_the_embedded_engine() {
    let (tinker, _, model) = engines();
    for objective in [Objective::ImportanceSampling, Objective::Cispo { low: 0.2, high: 0.3 }] {
        one_update(&tinker, &model, objective);
    }
}

fn one_update(tinker: &str, model: &Path, objective: Objective) {
    let dir = tempfile::tempdir().unwrap();
    let base = NativeModel::open(model).unwrap();
    let (config, vocabulary) = (base.config().clone(), base.config().vocab_size);
    let mut server = trainer(tinker, model, vocabulary, dir.path());
    // One step first, so that both adapter matrices have gradients.
    let step = OptimStep { learning_rate: 1e-2, max_grad_norm: 0.0, epsilon: 1e-3, ..Default::default() };
    let batch = |advantage: f32| {
        TokenForest::from_sequences([vec![0_u32, 3, 5, 7, 2, 4], vec![1, 6, 2, 9, 3]].into_iter().enumerate().map(
            move |(r, tokens)| {
                let n = tokens.len();
                let mut train = PerToken {
                    weights: vec![0.1 * (r + 1) as f32; n],
                    advantages: vec![advantage * (1.0 - 1.5 * r as f32); n],
                    old_logprobs: vec![-2.0; n],
                    ..Default::default()
                };
                train.weights[..2].fill(0.0);
                (tokens, train)
            },
        ))
    };
    let loss = Loss::of(objective);
    server.forward_backward(&batch(1.0), &Loss::of(Objective::CrossEntropy)).unwrap();
    server.optim_step(&step).unwrap();
    let (before, after) = (dir.path().join("before"), dir.path().join("after"));
    server.save(&before).unwrap();
    // New optimiser state on both sides.
    let start = NativeAdapter::open(&before, &config).unwrap();
    let (mut native, _) = base.with_adapter(start.clone()).unwrap().train(EngineOptions::default()).unwrap();
    let ours = native.forward_backward(&batch(1.0), &loss).unwrap();
    let theirs = server.forward_backward(&batch(1.0), &loss).unwrap();
    assert!((ours.loss - theirs.loss).abs() < 1e-5 * ours.loss.abs().max(1.0), "{} {}", ours.loss, theirs.loss);
    // SkyRL's JAX backend shares lora_A between q, k and v and between gate and up, and saves a copy for each: its
    // gradient is the sum of the native ones. All other matrices are separate.
    let gradients: BTreeMap<String, Vec<f32>> =
        native.gradients().map(|(n, _, g)| (n.to_owned(), g.to_vec())).collect();
    let shared = |name: &str| -> Vec<String> {
        let family = [&["q_proj", "k_proj", "v_proj"][..], &["gate_proj", "up_proj"]];
        let found = family.iter().find_map(|f| f.iter().find(|m| name.contains(**m)).map(|m| (f, m)));
        match found.filter(|_| name.ends_with("lora_A.weight")) {
            Some((family, mine)) => family.iter().map(|m| name.replace(mine, m)).collect(),
            None => vec![name.to_owned()],
        }
    };
    let sum = |name: &str| -> Vec<f32> {
        let parts: Vec<&Vec<f32>> = shared(name).iter().map(|n| &gradients[n]).collect();
        (0..parts[0].len()).map(|i| parts.iter().map(|p| p[i]).sum()).collect()
    };
    // Without momentum, the step is the gradient divided by its absolute value.
    let no_momentum = OptimStep { beta1: 0.0, beta2: 0.0, ..step };
    let norm = server.optim_step(&no_momentum).unwrap().grad_norm;
    let squares = gradients.keys().map(|n| {
        let square: f64 = sum(n).iter().map(|g| f64::from(*g).powi(2)).sum();
        square / shared(n).len() as f64
    });
    let expected = squares.sum::<f64>().sqrt();
    assert!((norm / expected - 1.0).abs() < 1e-5, "{norm} {expected}");
    server.save(&after).unwrap();
    let changed = NativeAdapter::open(&after, &config).unwrap();
    let (mut largest, mut max_error) = (0.0_f32, 0.0_f32);
    for ((name, _, first), (_, _, last)) in start.tensors().zip(changed.tensors()) {
        for ((g, first), last) in sum(name).iter().zip(first).zip(last) {
            let ours = -no_momentum.learning_rate * g / (g.abs() + no_momentum.epsilon);
            largest = largest.max((last - first).abs());
            max_error = max_error.max((last - first - ours).abs());
        }
    }
    eprintln!("{objective:?}: norms {norm} {expected}; largest change {largest:.2e}, maximum error {max_error:.2e}");
    assert!(largest > 5e-3 && max_error < 1e-3 * largest, "{largest} {max_error}");
}
