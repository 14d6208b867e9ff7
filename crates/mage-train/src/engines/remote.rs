//! Who computes elsewhere, and is a recipe something they can do?
//!
//! A server trains over the Tinker protocol; a pool of vLLM servers samples, or the same server does. What the two offer is
//! less than the embedded engine, and a recipe that asks for more is refused before anything is sent, with all it asks for.

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

/// What a recipe asks for that its remote engine does not offer, each with the key to change.
pub fn missing(recipe: &Recipe) -> Vec<String> {
    let backend = recipe.tinker.backend;
    let caps = backend.trainer_caps(recipe.model.max_seq_len);
    let (loss, optim, engine, rollout) = (&recipe.loss, &recipe.optim, &recipe.engine, &recipe.rollout);
    let alone = recipe.vllm.servers.is_empty();
    let sampled = if alone { backend.sampler_caps(0).logprobs } else { LogprobsMode::Raw };
    let filtered = rollout.temperature != 1.0 || rollout.top_p != 1.0 || rollout.top_k != 0;
    let entropy = loss.entropy != 0.0 || loss.entropy_end != 0.0 || loss.entropy_reflect != 0.0;
    let kl = [loss.kl_play, loss.kl_reflect].iter().any(|c| *c != 0.0);
    let dual = loss.objective == PolicyLoss::Ppo && loss.dual_clip != 0.0;
    let cispo = loss.objective == PolicyLoss::Cispo;
    let alpha = engine.lora_alpha != 0.0 && engine.lora_alpha != backend.alpha();
    let all = [
        (recipe.model.path.is_empty(), "a new model: set model.path to one that the servers have"),
        (engine.lora_rank == 0, "training of the whole model: set engine.lora_rank"),
        (alpha, "an alpha of its own: set engine.lora_alpha = 32"),
        (
            engine.lora_targets.len() != Projection::ALL.len(),
            "adapters for some matrices: leave engine.lora_targets out",
        ),
        (recipe.play.mask_actions && !caps.masks, "masks: set play.mask_actions = false"),
        (
            entropy && !caps.entropy,
            "an entropy bonus: set loss.entropy = 0, loss.entropy_end = 0 and loss.entropy_reflect = 0",
        ),
        (kl && !caps.kl.contains(&loss.kl_form), "a divergence penalty: set loss.kl_play = 0 and loss.kl_reflect = 0"),
        (dual && !caps.dual_clip, "a dual clip: set loss.dual_clip = 0"),
        (
            cispo && !caps.cispo,
            "CISPO with the recipe's bounds: set loss.objective = \"ppo\" or \"importance_sampling\"",
        ),
        (optim.max_grad_norm != 0.0 && !caps.grad_clipping, "clipping of gradients: set optim.max_grad_norm = 0"),
        (
            filtered && sampled != LogprobsMode::Raw,
            "sampling that is not the policy's own: set rollout.temperature = 1, top_p = 1 and top_k = 0, or use vllm.servers",
        ),
        (!alone && !backend.gives_adapters(), "a pool of its own to sample from: leave vllm.servers out"),
        (
            rollout.overlap && alone,
            "gathering while training, on one server: set rollout.overlap = false, or use vllm.servers",
        ),
    ];
    all.into_iter().filter(|(lacks, _)| *lacks).map(|(_, what)| what.to_owned()).collect()
}

/// Refuses a recipe that asks its remote engine for more than it offers.
pub(crate) fn check(recipe: &Recipe) -> Result<()> {
    check_keys(recipe)?;
    if recipe.engine.kind != EngineKind::Tinker {
        return Ok(());
    }
    check_addresses(recipe)?;
    let missing = missing(recipe);
    if missing.is_empty() {
        return Ok(());
    }
    let name = recipe.tinker.backend.trainer_caps(0).engine;
    let problem = format!("{name} does not offer what this recipe asks for:\n  {}", missing.join("\n  "));
    Err(Error::Recipe { place: "engine.kind".to_owned(), problem })
}

/// Refuses addresses that are none, before anything is written down that may hold a password.
pub fn check_addresses(recipe: &Recipe) -> Result<()> {
    let wrong = |key: &str, problem: String| Error::Recipe { place: key.to_owned(), problem };
    Service::Tinker.address(&recipe.tinker.url).map_err(|problem| wrong("tinker.url", problem))?;
    let mut all = Vec::new();
    for server in &recipe.vllm.servers {
        let address = Service::Vllm.address(server).map_err(|problem| wrong("vllm.servers", problem))?;
        if all.contains(&address) {
            return Err(wrong("vllm.servers", format!("a server is named twice: {address}")));
        }
        all.push(address);
    }
    Ok(())
}

/// Refuses keys where names of environment variables belong, whatever computes: recipes are written down.
fn check_keys(recipe: &Recipe) -> Result<()> {
    for (key, variable) in [("tinker.key_env", &recipe.tinker.key_env), ("vllm.key_env", &recipe.vllm.key_env)] {
        let checked = check_env_var_name(variable);
        checked.map_err(|problem| Error::Recipe { place: key.to_owned(), problem })?;
    }
    Ok(())
}

/// What is known here of the model that servers hold.
pub fn describe(recipe: &Recipe) -> Result<ModelDescription> {
    Hub::from_env(true).describe(&recipe.model.path)
}

/// How the training server is reached.
pub fn tinker_settings(recipe: &Recipe, model: &ModelDescription, notices: &StatusLog) -> Result<TinkerSettings> {
    let (t, path) = (&recipe.tinker, &recipe.model.path);
    let folder = std::fs::canonicalize(path).map_or_else(|_| path.clone(), |p| p.display().to_string());
    Ok(TinkerSettings {
        server: TinkerServer {
            url: t.url.clone(),
            dialect: t.sdk_version,
            key: ApiKey::from_env(&t.key_env)?,
            waiting: waiting(t.timeout),
            notices: notices.clone(),
        },
        backend: t.backend,
        base_model: if t.base_model.is_empty() { path.clone() } else { t.base_model.clone() },
        base_folder: folder,
        rank: recipe.engine.lora_rank,
        seed: (Seed::new(recipe.seed).child("adapter").value() >> 33) as u32,
        vocabulary: model.config.vocab_size,
        max_seq_len: model.config.max_position_embeddings,
        adapters: adapters(recipe),
        tolerance: recipe.vllm.tolerance,
        calibrate: t.calibrate,
    })
}

/// How the sampling servers are reached; `None` where there are none.
pub fn pool_settings(
    recipe: &Recipe,
    model: &ModelDescription,
    notices: &StatusLog,
) -> Result<Option<VllmPoolSettings>> {
    let v = &recipe.vllm;
    if v.servers.is_empty() {
        return Ok(None);
    }
    Ok(Some(VllmPoolSettings {
        servers: v.servers.clone(),
        model: if v.model.is_empty() { recipe.model.path.clone() } else { v.model.clone() },
        key: ApiKey::from_env(&v.key_env)?,
        in_flight: v.max_in_flight,
        vocabulary: model.config.vocab_size,
        max_seq_len: model.config.max_position_embeddings,
        tolerance: v.tolerance,
        keep: v.keep_versions,
        waiting: waiting(recipe.tinker.timeout),
        answer_within: seconds(v.request_timeout),
        notices: notices.clone(),
    }))
}

fn waiting(patience: f64) -> Timeouts {
    Timeouts { away: seconds(patience), ..Timeouts::default() }
}

fn seconds(some: f64) -> Duration {
    Duration::try_from_secs_f64(some).unwrap_or(Duration::MAX)
}

/// Where adapters are put for the pool.
fn adapters(recipe: &Recipe) -> PathBuf {
    match recipe.vllm.adapter_dir.as_str() {
        // Of each user, since nobody can write into another's.
        "" => {
            let whose = std::env::var("USER").map(|user| format!("-{user}")).unwrap_or_default();
            std::env::temp_dir().join(format!("mage-adapters{}", whose.replace(['/', '\\'], "_")))
        }
        folder => std::path::absolute(Path::new(folder)).unwrap_or_else(|_| folder.into()),
    }
}

/// Connects to the servers a recipe names.
pub(crate) fn start(recipe: &Recipe, notices: &StatusLog) -> Result<Engines> {
    let model = describe(recipe)?;
    let renderer = model.renderer.clone().ok_or_else(|| Error::Recipe {
        place: "model.path".to_owned(),
        problem: format!("{} has no tokenizer.json", recipe.model.path),
    })?;
    let pool = pool_settings(recipe, &model, notices)?.map(VllmPool::new).transpose()?.map(Arc::new);
    let trainer = TinkerTrainer::connect(tinker_settings(recipe, &model, notices)?, pool.clone())?;
    let sampler: Arc<dyn Sampler> = match pool {
        Some(pool) => pool,
        None => Arc::new(trainer.sampler()?),
    };
    Ok(Engines {
        trainer: Box::new(trainer),
        sampler,
        renderer,
        parameters: model.parameters,
        context: model.config.max_position_embeddings,
        device: place(recipe),
    })
}

/// Who computes, and where.
pub(crate) fn place(recipe: &Recipe) -> String {
    let trains = format!("{} at {}", recipe.tinker.backend.trainer_caps(0).engine, recipe.tinker.url);
    match recipe.vllm.servers.len() {
        0 => trains,
        n => format!("{trains}, {n} vLLM"),
    }
}

/// What deserves a word before servers are asked for anything.
pub(crate) fn warnings(recipe: &Recipe) -> Result<Vec<String>> {
    Ok(without_keys(recipe)?.into_iter().chain(without_adapters(recipe)).collect())
}

/// Which servers would be asked without a key that they may want: those on other machines, and those for which a variable was
/// named that is not set.
fn without_keys(recipe: &Recipe) -> Result<Vec<String>> {
    let (t, v) = (&recipe.tinker, &recipe.vllm);
    let usual = (TinkerConfig::default().key_env, VllmConfig::default().key_env);
    let trains = std::iter::once((&t.url, &t.key_env, t.key_env != usual.0));
    let samples = v.servers.iter().map(|url| (url, &v.key_env, v.key_env != usual.1));
    let mut out = Vec::new();
    for (url, variable, named) in trains.chain(samples) {
        let wanted = named || !is_loopback(url);
        if wanted && !variable.is_empty() && ApiKey::from_env(variable)?.is_none() {
            out.push(format!("{variable} is not set: {url} is asked without a key"));
        }
    }
    Ok(out)
}

/// Which servers are beyond this machine where adapters are put into a folder for temporary files, which they do not see.
fn without_adapters(recipe: &Recipe) -> Option<String> {
    let beyond: Vec<&str> = recipe.vllm.servers.iter().map(String::as_str).filter(|url| !is_loopback(url)).collect();
    (recipe.vllm.adapter_dir.is_empty() && !beyond.is_empty()).then(|| {
        format!(
            "vllm.adapter_dir is empty, and {} will not find adapters in {} of this machine: set it to a folder that all see under \
             the same path",
            beyond.join(", "),
            adapters(recipe).display()
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
        // Afterwards: what does not fit would be refused here.
        let mut recipe = composer.finish().unwrap();
        recipe.engine.kind = EngineKind::Tinker;
        recipe
    }

    #[test]
    fn a_recipe_that_asks_for_more_is_refused_with_the_list() {
        let e = recipe(&[]).check().unwrap_err().to_string();
        for key in
            ["model.path", "lora_rank", "mask_actions", "loss.entropy", "kl_reflect", "dual_clip", "max_grad_norm"]
        {
            assert!(e.contains(key), "{key}: {e}");
        }
        assert!(e.starts_with("engine.kind: tinker (jax) does not offer"), "{e}");
        let summing = missing(&recipe(&["tinker.backend=fsdp"]));
        assert!(summing.iter().all(|m| !m.contains("max_grad_norm")), "{summing:?}");
    }

    #[test]
    fn addresses_are_looked_at_before_anybody_is_asked() {
        for (set, key) in [
            ("tinker.url=localhost:8000", "tinker.url"),
            ("vllm.servers=[\"http://a:1\", \"nonsense\"]", "vllm.servers"),
            ("vllm.servers=[\"http://a:1\", \"http://a:1\"]", "vllm.servers: a server is named twice"),
            ("vllm.servers=[\"http://a:80/v1\", \"http://A/\"]", "vllm.servers: a server is named twice: http://a"),
            ("vllm.servers=[\"http://a:1/api/v1\"]", "vllm.servers: this ends as a Tinker server's does"),
            ("tinker.url=http://me:hush@a:1", "tinker.url: leave logins"),
            ("tinker.url=http://a:1#hush", "tinker.url: leave out what follows"),
        ] {
            let e = recipe(&[set]).check().unwrap_err().to_string();
            assert!(e.starts_with(key) && !e.contains("hush"), "{set}: {e}");
        }
    }

    #[test]
    fn a_key_in_a_recipe_is_refused_and_not_repeated_whoever_computes() {
        for key in ["tinker.key_env", "vllm.key_env"] {
            let mut composer = Composer::new();
            composer.add("kuhn").unwrap();
            composer.set(&format!("{key}=sk-hush")).unwrap();
            let e = composer.finish().unwrap_err().to_string();
            assert!(e.starts_with(&format!("{key}: this is no environment variable's name")), "{e}");
            assert!(!e.contains("hush"), "{e}");
        }
    }

    #[test]
    fn servers_that_may_want_a_key_are_named_where_there_is_none() {
        let said = |sets: &[&str]| without_keys(&recipe(sets)).unwrap();
        assert!(said(&["vllm.servers=[\"http://127.0.0.1:1\"]"]).is_empty(), "on this machine nobody locks doors");
        // No variable of this name is set wherever tests run.
        let (there, variable) = ("tinker.url=https://engine.example", "tinker.key_env=MAGE_TEST_NO_SUCH_KEY");
        let expected = ["MAGE_TEST_NO_SUCH_KEY is not set: https://engine.example is asked without a key"];
        assert_eq!(said(&[there, variable]), expected);
        assert_eq!(said(&[variable]).len(), 1, "who names one has one");
        assert!(said(&[there, "tinker.key_env="]).is_empty(), "who names none wants none");
    }

    #[test]
    fn servers_that_do_not_see_the_adapters_are_named() {
        let said = |sets: &[&str]| without_adapters(&recipe(sets));
        let (here, there) = ("\"http://127.0.0.1:1\"", "\"http://sampler.example:8100\"");
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[&format!("vllm.servers=[{here}]")]), None);
        let both = format!("vllm.servers=[{here}, {there}]");
        let line = said(&[&both]).unwrap();
        assert!(line.contains("http://sampler.example:8100 will not find") && !line.contains("127.0.0.1"), "{line}");
        assert_eq!(said(&[&both, "vllm.adapter_dir=/shared/adapters"]), None);
    }

    #[test]
    fn a_recipe_that_fits_passes() {
        let fits = [
            "engine.lora_rank=8",
            "model.path=somewhere",
            "play.mask_actions=false",
            "loss.entropy=0",
            "loss.entropy_end=0",
            "loss.kl_reflect=0",
            "loss.dual_clip=0",
            "optim.max_grad_norm=0",
        ];
        recipe(&fits).check().unwrap();
        let filtered: Vec<&str> = fits.iter().copied().chain(["rollout.top_p=0.9"]).collect();
        assert!(missing(&recipe(&filtered))[0].contains("vllm.servers"));
        let pooled_sets: Vec<&str> = filtered.into_iter().chain(["vllm.servers=[\"http://127.0.0.1:1\"]"]).collect();
        assert!(missing(&recipe(&pooled_sets)).is_empty(), "vLLM tells the policy's own log-probabilities");
        // Where sampler weights are whole models, no pool is given any.
        let whole: Vec<&str> = pooled_sets.iter().copied().chain(["tinker.backend=fsdp"]).collect();
        assert!(missing(&recipe(&whole)).iter().any(|m| m.contains("leave vllm.servers out")));
        // A dual clip is PPO's: others do not ask for it.
        for objective in ["cispo", "importance_sampling"] {
            let set = format!("loss.objective={objective}");
            let named: Vec<&str> = fits.iter().copied().filter(|s| !s.contains("dual")).chain([set.as_str()]).collect();
            recipe(&named).check().unwrap();
            let on_gpus: Vec<&str> =
                named.into_iter().chain(["tinker.backend=fsdp", "optim.max_grad_norm=1"]).collect();
            assert_eq!(missing(&recipe(&on_gpus)).iter().any(|m| m.contains("CISPO")), objective == "cispo");
        }
    }
}
