//! Games with opponents to adapt to.

mod game_agents;
mod game_spec;
pub mod kuhn;
pub mod tictactoe;

pub use game_agents::EpisodeFacts;
pub use game_spec::GameSpec;
