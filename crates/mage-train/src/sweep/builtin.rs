//! Embedded sweeps: `tiny/` for small models, `paper/` for the paper's settings.

use mage_env::nearest_name;

const PRESETS: &[(&str, &str)] = &[
    ("paper/ablation-anchor", include_str!("../../sweeps/paper/ablation-anchor.toml")),
    ("paper/ablation-grouping", include_str!("../../sweeps/paper/ablation-grouping.toml")),
    ("paper/ablation-population", include_str!("../../sweeps/paper/ablation-population.toml")),
    ("paper/ablation-reward", include_str!("../../sweeps/paper/ablation-reward.toml")),
    ("paper/fig3", include_str!("../../sweeps/paper/fig3.toml")),
    ("paper/fig4", include_str!("../../sweeps/paper/fig4.toml")),
    ("paper/fig6", include_str!("../../sweeps/paper/fig6.toml")),
    ("paper/fig8", include_str!("../../sweeps/paper/fig8.toml")),
    ("paper/fig9", include_str!("../../sweeps/paper/fig9.toml")),
    ("paper/table1", include_str!("../../sweeps/paper/table1.toml")),
    ("tiny/ablation-anchor", include_str!("../../sweeps/tiny/ablation-anchor.toml")),
    ("tiny/ablation-grouping", include_str!("../../sweeps/tiny/ablation-grouping.toml")),
    ("tiny/ablation-population", include_str!("../../sweeps/tiny/ablation-population.toml")),
    ("tiny/ablation-reward", include_str!("../../sweeps/tiny/ablation-reward.toml")),
    ("tiny/fig3", include_str!("../../sweeps/tiny/fig3.toml")),
    ("tiny/fig4", include_str!("../../sweeps/tiny/fig4.toml")),
    ("tiny/fig6", include_str!("../../sweeps/tiny/fig6.toml")),
    ("tiny/fig8", include_str!("../../sweeps/tiny/fig8.toml")),
    ("tiny/fig9", include_str!("../../sweeps/tiny/fig9.toml")),
    ("tiny/table1", include_str!("../../sweeps/tiny/table1.toml")),
];

/// Figures whose sweeps are ablations.
const ALIASES: [(&str, &str); 2] = [("fig5", "ablation-reward"), ("fig7", "ablation-anchor")];

/// What the presets of a scale need.
pub const SCALES: [(&str, &str); 2] = [
    ("tiny", "models of 26,000 parameters: two cores, up to half an hour each"),
    ("paper", "Qwen3-4B: a GPU of 141 GB or servers (docs/scale.md), days each"),
];

/// The names of all presets, those of small models first.
pub fn preset_names() -> Vec<String> {
    let of_scale = |(scale, _): (&str, &str)| {
        let prefix = format!("{scale}/");
        let aliases = ALIASES.map(|(name, _)| format!("{prefix}{name}"));
        let presets = PRESETS.iter().map(|(name, _)| (*name).to_owned()).filter(|name| name.starts_with(&prefix));
        let mut names: Vec<String> = presets.chain(aliases).collect();
        names.sort();
        names
    };
    SCALES.into_iter().flat_map(of_scale).collect()
}

/// The preset with a similar name, without the optional prefix `tiny/`.
pub fn nearest_preset(name: &str) -> Option<String> {
    let names = preset_names();
    let short = names.iter().map(|name| name.strip_prefix("tiny/").unwrap_or(name));
    nearest_name(name, short).map(str::to_owned)
}

/// The TOML of a preset. `tiny/` may be omitted; `recipes/tiny/NAME.toml` is accepted too.
pub fn preset_text(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("recipes/").unwrap_or(name);
    let name = name.strip_suffix(".toml").unwrap_or(name);
    let (scale, sweep) = name.split_once('/').unwrap_or(("tiny", name));
    let sweep = ALIASES.iter().find(|(alias, _)| *alias == sweep).map_or(sweep, |(_, sweep)| sweep);
    let full = format!("{scale}/{sweep}");
    PRESETS.iter().find(|(name, _)| *name == full).map(|(_, text)| *text)
}
