//! Embedded sweeps.

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

/// The names of all presets.
pub fn preset_names() -> Vec<String> {
    let aliases = ["paper", "tiny"].into_iter().flat_map(|scale| ALIASES.map(|(name, _)| format!("{scale}/{name}")));
    let mut all: Vec<String> = PRESETS.iter().map(|(name, _)| (*name).to_owned()).chain(aliases).collect();
    all.sort();
    all
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
