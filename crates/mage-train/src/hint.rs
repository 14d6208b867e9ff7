//! Wording of engines' hints in terms of recipe keys, flags and commands.

use mage_engine::Hint;
use mage_remote::StatusLog;

/// What a hint tells the user to do.
fn instruction(hint: Hint) -> &'static str {
    match hint {
        Hint::UseCpu => "to do without a GPU, use --device cpu",
        Hint::DiagnoseMachine => "`mage doctor` shows the GPUs and the libraries found",
        Hint::TrainAdapter => "train a LoRA adapter (engine.lora_rank)",
        Hint::DisableActionMasks => "set play.mask_actions = false",
        Hint::DisableGradClipping => "set optim.max_grad_norm = 0",
        Hint::LowerLearningRate => "lower optim.learning_rate, or look for extreme advantages or log-probs",
        Hint::ResumeRun => "resume from the last checkpoint (`mage train --resume RUN`)",
        Hint::SetApiKey => {
            "the API key is read from the environment variable that tinker.key_env or vllm.key_env names: check it"
        }
        Hint::CheckAddress => "check the address",
        Hint::CheckTrainerAddress => "check that the server runs and that tinker.url is its address",
        Hint::SetTrainerAddress => "set tinker.url to its address",
        Hint::AddToPool => "add its address to vllm.servers",
        Hint::SetBaseModel => "set tinker.base_model",
        Hint::SetBackend => "set tinker.backend to the backend of the server",
        Hint::LaunchTrainer => "`mage launch` writes a script that starts it so",
        Hint::SampleOnPool => "sample with vLLM (vllm.servers), which keeps published adapters",
        Hint::SampleOnTrainer => "remove vllm.servers to sample on the training server",
        Hint::KeepSampler => "resume with the vllm.servers of the checkpoint, or without any if it had none",
        Hint::ShareAdapterDir => "set vllm.adapter_dir to a directory that both machines share",
        Hint::IncreaseRequestTimeout => "if responses take this long, increase vllm.request_timeout",
    }
}

/// A message followed by what the user can do.
fn with_instructions(message: &str, hints: &[Hint]) -> String {
    hints.iter().fold(message.to_owned(), |text, hint| format!("{text}; {}", instruction(*hint)))
}

/// The message of an engine's error, followed by what the user can do.
pub fn explain(e: &mage_engine::Error) -> String {
    with_instructions(&e.to_string(), e.hints())
}

/// A status log that gives each line to `print`, followed by what the user can do.
pub fn status_log(print: impl Fn(&str) + Send + Sync + 'static) -> StatusLog {
    StatusLog::new(move |line, hints| print(&with_instructions(line, hints)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use std::sync::{Arc, Mutex};

    #[test]
    fn errors_and_status_lines_end_with_instructions() {
        let hints = &[Hint::ResumeRun, Hint::LowerLearningRate];
        let error = Error::from(mage_engine::Error::engine("http://trainer", "no gradient").with_hints(hints));
        let expected = "http://trainer failed: no gradient; resume from the last checkpoint (`mage train --resume RUN`); \
                        lower optim.learning_rate, or look for extreme advantages or log-probs";
        assert_eq!(error.to_string(), expected);
        let masks = mage_engine::Error::unsupported("sample with action masks", "vLLM has none");
        let text = Error::from(masks.with_hints(&[Hint::DisableActionMasks])).to_string();
        assert_eq!(text, "this engine cannot sample with action masks: vLLM has none; set play.mask_actions = false");

        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let log = status_log(move |line| sink.lock().unwrap().push(line.to_owned()));
        log.log("connected");
        assert_eq!(*lines.lock().unwrap(), ["connected"]);
    }
}
