//! `mage warmstart`: supervised training of a model on expert episodes or transcripts.

use crate::{
    App,
    cli::WarmstartArgs,
    command::{
        recipe::compose_and_warn,
        train::{stop_on_ctrl_c, train_env},
    },
    interrupt::Interrupted,
    output::{BOLD, Output, styled},
    progress::TrainingProgress,
    text::shell_quote,
    usage,
};
use mage_train::train::warm_start;

pub(crate) fn run(app: &App, args: &WarmstartArgs, out: &Output) -> anyhow::Result<()> {
    let mut set = args.overrides.to_set();
    // Quoted, so that a path that looks like a number stays a string.
    set.extend(args.transcripts.as_ref().map(|f| format!("warmstart.transcripts={}", serde_json::json!(f))));
    let recipe = compose_and_warn(&args.recipes, &set, out)?;
    let env = train_env(app, &recipe)?;
    let stop = stop_on_ctrl_c("stopping; no model will be saved")?;
    let mut progress = TrainingProgress::new(*out);
    let mut last_loss = f64::NAN;
    let finished = warm_start(&recipe, &env, &args.out, &stop, &mut |event| {
        if let mage_train::train::TrainEvent::Warmstart { loss, .. } = &event {
            last_loss = *loss;
        }
        progress.show(event);
    });
    progress.clear();
    if !finished.map_err(usage)? {
        out.hint("stopped; no model was saved");
        return Err(Interrupted.into());
    }
    let model = args.out.display().to_string();
    if out.json {
        let steps = recipe.warmstart.steps;
        return out
            .object(&serde_json::json!({ "event": "finished", "model": model, "steps": steps, "loss": last_loss }));
    }
    out.line(format!("model: {model}"))?;
    let recipes = args.recipes.join(" ");
    let model = shell_quote(&args.out);
    out.hint(format!("train it with: {}", styled(BOLD, format!("mage train {recipes} --set model.path={model}"))));
    Ok(())
}
