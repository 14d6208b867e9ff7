//! `mage warmstart`: teach a model the form of an answer.

use crate::{
    App,
    cli::WarmstartArgs,
    command::{
        recipe::compose,
        train::{setting, shell_word, stop_on_ctrl_c},
    },
    interrupt::Interrupted,
    output::{BOLD, Output, styled},
    progress::TrainingProgress,
    usage,
};
use mage_train::train::warm_start;

pub(crate) fn run(app: &App, args: &WarmstartArgs, out: &Output) -> anyhow::Result<()> {
    let mut set = args.overrides.to_set();
    // A path is text, whatever it looks like.
    set.extend(args.transcripts.as_ref().map(|f| format!("warmstart.transcripts={}", serde_json::json!(f))));
    let recipe = compose(&args.recipes, &set)?;
    let setting = setting(app, &recipe)?;
    let stop = stop_on_ctrl_c("stopping; nothing will be written")?;
    let mut progress = TrainingProgress::new(*out);
    let mut last = f64::NAN;
    let finished = warm_start(&recipe, &setting, &args.out, &stop, &mut |event| {
        if let mage_train::train::TrainEvent::Warmstart { loss, .. } = &event {
            last = *loss;
        }
        progress.show(event);
    });
    progress.clear();
    if !finished.map_err(usage)? {
        out.hint("stopped; nothing was written");
        return Err(Interrupted.into());
    }
    let model = args.out.display().to_string();
    if out.json {
        let steps = recipe.warmstart.steps;
        return out.object(&serde_json::json!({ "event": "finished", "model": model, "steps": steps, "loss": last }));
    }
    out.line(format!("model: {model}"))?;
    let recipes = args.recipes.join(" ");
    let model = shell_word(&args.out);
    out.line(format!("train it: {}", styled(BOLD, format!("mage train {recipes} --set model.path={model}"))))
}
