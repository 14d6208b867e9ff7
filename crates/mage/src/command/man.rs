//! `mage man`: manual pages.

use crate::{
    cli::{ManArgs, command},
    output::Output,
};
use anyhow::Context;
use std::fs;

pub(crate) fn run(args: &ManArgs, out: &Output) -> anyhow::Result<()> {
    let dir = &args.out;
    let write = || {
        fs::create_dir_all(dir)?;
        clap_mangen::generate_to(command(), dir)
    };
    write().with_context(|| format!("cannot write manual pages to {}", dir.display()))?;
    if out.json {
        return out.object(&serde_json::json!({ "written": dir }));
    }
    out.line(dir.display())?;
    out.hint(format!("read them with: man {}", dir.join("mage.1").display()));
    Ok(())
}
