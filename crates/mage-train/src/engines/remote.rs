//! Remote engines: a Tinker training server, and a vLLM pool or the same server for sampling.
//!
//! Remote engines support less than the embedded one. A recipe that needs an unsupported feature is refused before any
//! request is sent; the error lists all of them.

use crate::{
    Error, Hub, Result,
    engines::Engines,
    recipe::{EngineKind, PolicyLoss, Recipe, TinkerConfig, VllmConfig},
};
use mage_engine::{LogprobsMode, Sampler};
use mage_env::Seed;
use mage_native::{ModelDescription, Projection};
use mage_remote::{
    ApiKey, Service, StatusLog, Timeouts, TinkerServer, TinkerSettings, TinkerTrainer, VllmPool, VllmPoolSettings,
    check_env_var_name, is_loopback,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Features of a recipe that its remote engine does not support, each with the key to change.
pub fn unsupported_features(recipe: &Recipe) -> Vec<String> {
    let backend = recipe.tinker.backend;
    let caps = backend.trainer_caps(recipe.model.max_seq_len);
    let (loss, optim, engine, rollout) = (&recipe.loss, &recipe.optim, &recipe.engine, &recipe.rollout);
    let no_pool = recipe.vllm.servers.is_empty();
    let logprobs = if no_pool { backend.sampler_caps(0).logprobs } else { LogprobsMode::Raw };
    let filtered = rollout.temperature != 1.0 || rollout.top_p != 1.0 || rollout.top_k != 0;
    let entropy = loss.entropy != 0.0 || loss.entropy_end != 0.0 || loss.entropy_reflect != 0.0;
    let kl = [loss.kl_play, loss.kl_reflect].iter().any(|c| *c != 0.0);
    let dual = loss.objective == PolicyLoss::Ppo && loss.dual_clip != 0.0;
    let cispo = loss.objective == PolicyLoss::Cispo;
    let alpha = engine.lora_alpha != 0.0 && engine.lora_alpha != backend.alpha();
    let all = [
        (recipe.model.path.is_empty(), "training a new model: set model.path to a model of the servers"),
        (engine.lora_rank == 0, "full-parameter training: set engine.lora_rank"),
        (alpha, "a custom LoRA alpha: set engine.lora_alpha = 32"),
        (engine.lora_targets.len() != Projection::ALL.len(), "a selection of LoRA targets: remove engine.lora_targets"),
        (recipe.play.mask_actions && !caps.masks, "action masks: set play.mask_actions = false"),
        (
            entropy && !caps.entropy,
            "an entropy bonus: set loss.entropy = 0, loss.entropy_end = 0 and loss.entropy_reflect = 0",
        ),
        (kl && !caps.kl.contains(&loss.kl_form), "a KL penalty: set loss.kl_play = 0 and loss.kl_reflect = 0"),
        (dual && !caps.dual_clip, "a dual clip: set loss.dual_clip = 0"),
        (cispo && !caps.cispo, "CISPO with these clip ranges: set loss.objective = \"ppo\" or \"importance_sampling\""),
        (optim.max_grad_norm != 0.0 && !caps.grad_clipping, "gradient clipping: set optim.max_grad_norm = 0"),
        (
            filtered && logprobs != LogprobsMode::Raw,
            "modified sampling distributions: set rollout.temperature = 1, top_p = 1 and top_k = 0, or use vllm.servers",
        ),
        (!no_pool && !backend.can_download_adapters(), "a separate sampling pool: remove vllm.servers"),
        (
            rollout.overlap && no_pool,
            "overlap of rollout and training on one server: set rollout.overlap = false, or use vllm.servers",
        ),
    ];
    all.into_iter().filter(|(unsupported, _)| *unsupported).map(|(_, feature)| feature.to_owned()).collect()
}

/// Refuses a recipe that needs features that its remote engine does not support.
pub(crate) fn check(recipe: &Recipe) -> Result<()> {
    check_keys(recipe)?;
    if recipe.engine.kind != EngineKind::Tinker {
        return Ok(());
    }
    check_addresses(recipe)?;
    let unsupported = unsupported_features(recipe);
    if unsupported.is_empty() {
        return Ok(());
    }
    let name = recipe.tinker.backend.trainer_caps(0).engine;
    let problem = format!("{name} does not support features of this recipe:\n  {}", unsupported.join("\n  "));
    Err(Error::Recipe { location: "engine.kind".to_owned(), problem })
}

/// Refuses invalid URLs before the recipe is written, since they may hold a password.
pub fn check_addresses(recipe: &Recipe) -> Result<()> {
    let invalid = |key: &str, problem: String| Error::Recipe { location: key.to_owned(), problem };
    Service::Tinker.normalize_address(&recipe.tinker.url).map_err(|problem| invalid("tinker.url", problem))?;
    let mut all = Vec::new();
    for server in &recipe.vllm.servers {
        let address = Service::Vllm.normalize_address(server).map_err(|problem| invalid("vllm.servers", problem))?;
        if all.contains(&address) {
            return Err(invalid("vllm.servers", format!("duplicate server: {address}")));
        }
        all.push(address);
    }
    Ok(())
}

/// Refuses API keys in place of environment variable names, for every engine: recipes are written to disk.
fn check_keys(recipe: &Recipe) -> Result<()> {
    for (key, variable) in [("tinker.key_env", &recipe.tinker.key_env), ("vllm.key_env", &recipe.vllm.key_env)] {
        let checked = check_env_var_name(variable);
        checked.map_err(|problem| Error::Recipe { location: key.to_owned(), problem })?;
    }
    Ok(())
}

/// Description of the model of the servers.
pub fn describe(recipe: &Recipe) -> Result<ModelDescription> {
    Hub::from_env(true).describe(&recipe.model.path)
}

/// Connection settings of the training server.
pub fn tinker_settings(recipe: &Recipe, model: &ModelDescription, status_log: &StatusLog) -> Result<TinkerSettings> {
    let (t, path) = (&recipe.tinker, &recipe.model.path);
    let folder = std::fs::canonicalize(path).map_or_else(|_| path.clone(), |p| p.display().to_string());
    Ok(TinkerSettings {
        server: TinkerServer {
            url: t.url.clone(),
            sdk_version: t.sdk_version,
            key: ApiKey::from_env(&t.key_env)?,
            timeouts: timeouts(t.timeout),
            status_log: status_log.clone(),
        },
        backend: t.backend,
        base_model: if t.base_model.is_empty() { path.clone() } else { t.base_model.clone() },
        adapter_base_name: folder,
        lora_rank: recipe.engine.lora_rank,
        seed: (Seed::new(recipe.seed).child("adapter").value() >> 33) as u32,
        vocab_size: model.config.vocab_size,
        max_seq_len: model.config.max_position_embeddings,
        adapter_dir: adapter_dir(recipe),
        tolerance: recipe.vllm.tolerance,
        calibrate: t.calibrate,
    })
}

/// Connection settings of the sampling servers; `None` without any.
pub fn pool_settings(
    recipe: &Recipe,
    model: &ModelDescription,
    status_log: &StatusLog,
) -> Result<Option<VllmPoolSettings>> {
    let v = &recipe.vllm;
    if v.servers.is_empty() {
        return Ok(None);
    }
    Ok(Some(VllmPoolSettings {
        servers: v.servers.clone(),
        model: if v.model.is_empty() { recipe.model.path.clone() } else { v.model.clone() },
        api_key: ApiKey::from_env(&v.key_env)?,
        max_in_flight: v.max_in_flight,
        vocab_size: model.config.vocab_size,
        max_seq_len: model.config.max_position_embeddings,
        tolerance: v.tolerance,
        keep_versions: v.keep_versions,
        timeouts: timeouts(recipe.tinker.timeout),
        request_timeout: seconds(v.request_timeout),
        status_log: status_log.clone(),
    }))
}

fn timeouts(timeout: f64) -> Timeouts {
    Timeouts { outage: seconds(timeout), ..Timeouts::default() }
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}

/// Folder for the adapters of the pool.
fn adapter_dir(recipe: &Recipe) -> PathBuf {
    match recipe.vllm.adapter_dir.as_str() {
        // One folder per user, because of permissions.
        "" => {
            let suffix = std::env::var("USER").map(|user| format!("-{user}")).unwrap_or_default();
            std::env::temp_dir().join(format!("mage-adapters{}", suffix.replace(['/', '\\'], "_")))
        }
        folder => std::path::absolute(Path::new(folder)).unwrap_or_else(|_| folder.into()),
    }
}

/// Connects to the servers of a recipe.
pub(crate) fn start(recipe: &Recipe, status_log: &StatusLog) -> Result<Engines> {
    let model = describe(recipe)?;
    let renderer = model.renderer.clone().ok_or_else(|| Error::Recipe {
        location: "model.path".to_owned(),
        problem: format!("{} has no tokenizer.json", recipe.model.path),
    })?;
    let pool = pool_settings(recipe, &model, status_log)?.map(VllmPool::new).transpose()?.map(Arc::new);
    let trainer = TinkerTrainer::connect(tinker_settings(recipe, &model, status_log)?, pool.clone())?;
    let sampler: Arc<dyn Sampler> = match pool {
        Some(pool) => pool,
        None => Arc::new(trainer.sampler()?),
    };
    Ok(Engines {
        trainer: Box::new(trainer),
        sampler,
        renderer,
        parameters: model.parameters,
        max_seq_len: model.config.max_position_embeddings,
        device: description(recipe),
    })
}

/// Names and URLs of the servers.
pub(crate) fn description(recipe: &Recipe) -> String {
    let trainer = format!("{} at {}", recipe.tinker.backend.trainer_caps(0).engine, recipe.tinker.url);
    match recipe.vllm.servers.len() {
        0 => trainer,
        n => format!("{trainer}, {n} vLLM"),
    }
}

/// Warnings before any request is sent.
pub(crate) fn warnings(recipe: &Recipe) -> Result<Vec<String>> {
    Ok(missing_key_warnings(recipe)?.into_iter().chain(adapter_dir_warning(recipe)).collect())
}

/// Servers that may require an API key that is not set: those on other machines, and those whose variable is
/// configured.
fn missing_key_warnings(recipe: &Recipe) -> Result<Vec<String>> {
    let (t, v) = (&recipe.tinker, &recipe.vllm);
    let default_env = (TinkerConfig::default().key_env, VllmConfig::default().key_env);
    let trainer = std::iter::once((&t.url, &t.key_env, t.key_env != default_env.0));
    let samplers = v.servers.iter().map(|url| (url, &v.key_env, v.key_env != default_env.1));
    let mut out = Vec::new();
    for (url, variable, configured) in trainer.chain(samplers) {
        let expected = configured || !is_loopback(url);
        if expected && !variable.is_empty() && ApiKey::from_env(variable)?.is_none() {
            out.push(format!("{variable} is not set: requests to {url} have no API key"));
        }
    }
    Ok(out)
}

/// Servers on other machines that cannot see the temporary adapter folder.
fn adapter_dir_warning(recipe: &Recipe) -> Option<String> {
    let remote: Vec<&str> = recipe.vllm.servers.iter().map(String::as_str).filter(|url| !is_loopback(url)).collect();
    (recipe.vllm.adapter_dir.is_empty() && !remote.is_empty()).then(|| {
        format!(
            "vllm.adapter_dir is empty, and {} cannot see {} of this machine; set it to a folder that all machines see under the \
             same path",
            remote.join(", "),
            adapter_dir(recipe).display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Composer;

    fn recipe(sets: &[&str]) -> Recipe {
        let mut composer = Composer::new();
        composer.add("kuhn").unwrap();
        for set in sets {
            composer.set(set).unwrap();
        }
        // Set last, since finish() would refuse unsupported features.
        let mut recipe = composer.finish().unwrap();
        recipe.engine.kind = EngineKind::Tinker;
        recipe
    }

    #[test]
    fn unsupported_features_are_refused_with_a_list() {
        let e = recipe(&[]).check().unwrap_err().to_string();
        for key in
            ["model.path", "lora_rank", "mask_actions", "loss.entropy", "kl_reflect", "dual_clip", "max_grad_norm"]
        {
            assert!(e.contains(key), "{key}: {e}");
        }
        assert!(e.starts_with("engine.kind: tinker (jax) does not support"), "{e}");
        let fsdp = unsupported_features(&recipe(&["tinker.backend=fsdp"]));
        assert!(fsdp.iter().all(|m| !m.contains("max_grad_norm")), "{fsdp:?}");
    }

    #[test]
    fn urls_are_validated_before_any_request() {
        for (set, key) in [
            ("tinker.url=localhost:8000", "tinker.url"),
            ("vllm.servers=[\"http://a:1\", \"nonsense\"]", "vllm.servers"),
            ("vllm.servers=[\"http://a:1\", \"http://a:1\"]", "vllm.servers: duplicate server"),
            ("vllm.servers=[\"http://a:80/v1\", \"http://A/\"]", "vllm.servers: duplicate server: http://a"),
            ("vllm.servers=[\"http://a:1/api/v1\"]", "vllm.servers: this is the address of a Tinker server"),
            ("tinker.url=http://me:hush@a:1", "tinker.url: remove the login"),
            ("tinker.url=http://a:1#hush", "tinker.url: remove the query or fragment"),
        ] {
            let e = recipe(&[set]).check().unwrap_err().to_string();
            assert!(e.starts_with(key) && !e.contains("hush"), "{set}: {e}");
        }
    }

    #[test]
    fn an_api_key_in_a_recipe_is_refused_and_not_repeated() {
        for key in ["tinker.key_env", "vllm.key_env"] {
            let mut composer = Composer::new();
            composer.add("kuhn").unwrap();
            composer.set(&format!("{key}=sk-hush")).unwrap();
            let e = composer.finish().unwrap_err().to_string();
            assert!(e.starts_with(&format!("{key}=…: `{key}`: not the name of an environment variable")), "{e}");
            assert!(!e.contains("hush"), "{e}");
        }
    }

    #[test]
    fn missing_api_keys_are_reported_by_server() {
        let warnings = |sets: &[&str]| missing_key_warnings(&recipe(sets)).unwrap();
        assert!(warnings(&["vllm.servers=[\"http://127.0.0.1:1\"]"]).is_empty(), "loopback needs no key");
        // This variable is not set in any test environment.
        let (remote, variable) = ("tinker.url=https://engine.example", "tinker.key_env=MAGE_TEST_NO_SUCH_KEY");
        let expected = ["MAGE_TEST_NO_SUCH_KEY is not set: requests to https://engine.example have no API key"];
        assert_eq!(warnings(&[remote, variable]), expected);
        assert_eq!(warnings(&[variable]).len(), 1, "a configured variable must be set");
        assert!(warnings(&[remote, "tinker.key_env="]).is_empty(), "an empty name disables the key");
    }

    #[test]
    fn servers_that_cannot_see_the_adapter_folder_are_reported() {
        let warning = |sets: &[&str]| adapter_dir_warning(&recipe(sets));
        let (local, remote) = ("\"http://127.0.0.1:1\"", "\"http://sampler.example:8100\"");
        assert_eq!(warning(&[]), None);
        assert_eq!(warning(&[&format!("vllm.servers=[{local}]")]), None);
        let both = format!("vllm.servers=[{local}, {remote}]");
        let line = warning(&[&both]).unwrap();
        assert!(line.contains("http://sampler.example:8100 cannot see") && !line.contains("127.0.0.1"), "{line}");
        assert_eq!(warning(&[&both, "vllm.adapter_dir=/shared/adapters"]), None);
    }

    #[test]
    fn a_supported_recipe_passes() {
        let supported = [
            "engine.lora_rank=8",
            "model.path=somewhere",
            "play.mask_actions=false",
            "loss.entropy=0",
            "loss.entropy_end=0",
            "loss.kl_reflect=0",
            "loss.dual_clip=0",
            "optim.max_grad_norm=0",
        ];
        recipe(&supported).check().unwrap();
        let filtered: Vec<&str> = supported.iter().copied().chain(["rollout.top_p=0.9"]).collect();
        assert!(unsupported_features(&recipe(&filtered))[0].contains("vllm.servers"));
        let pooled_sets: Vec<&str> = filtered.into_iter().chain(["vllm.servers=[\"http://127.0.0.1:1\"]"]).collect();
        assert!(
            unsupported_features(&recipe(&pooled_sets)).is_empty(),
            "vLLM returns log-probabilities of the unmodified distribution"
        );
        // A backend that publishes full models cannot serve a pool.
        let full_models: Vec<&str> = pooled_sets.iter().copied().chain(["tinker.backend=fsdp"]).collect();
        assert!(unsupported_features(&recipe(&full_models)).iter().any(|m| m.contains("remove vllm.servers")));
        // The dual clip applies to PPO only.
        for objective in ["cispo", "importance_sampling"] {
            let set = format!("loss.objective={objective}");
            let sets: Vec<&str> =
                supported.iter().copied().filter(|s| !s.contains("dual")).chain([set.as_str()]).collect();
            recipe(&sets).check().unwrap();
            let on_gpus: Vec<&str> = sets.into_iter().chain(["tinker.backend=fsdp", "optim.max_grad_norm=1"]).collect();
            assert_eq!(
                unsupported_features(&recipe(&on_gpus)).iter().any(|m| m.contains("CISPO")),
                objective == "cispo"
            );
        }
    }
}
