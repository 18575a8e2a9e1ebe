//! Examples at the end of the verbs' `--help`.

pub(crate) const RUN: &str = "\
Examples:
  train                                                    the toy: a chat model in three minutes
  train --config gpt-124m --set memory.device_budget=4GiB  a preset under a budget
  train --config gpt-124m --dry-run                        the plan of that run
  train --resume runs/toy                                  continue a run";

pub(crate) const PLAN: &str = "\
Examples:
  train plan --config gpt-124m                          on this machine
  train plan --config gpt-1.5b --on rtx-4060,32GiB      on another one
  train plan --config gpt-124m --set train.recompute=1  with less memory";

pub(crate) const SAMPLE: &str = "\
Examples:
  train sample --from runs/toy
  train sample --from runs/toy --prompt 'The day after Monday' --temperature 0.7";

pub(crate) const CHAT: &str = "\
Examples:
  train chat --from runs/toy
  train chat --from runs/toy -p 'What day comes after Monday?'";

pub(crate) const DOCTOR: &str = "\
Exit code 0 if training can start, on the CPU at least.

Examples:
  train doctor
  train doctor --json";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  train completions bash > ~/.local/share/bash-completion/completions/train
  train completions fish > ~/.config/fish/completions/train.fish";

pub(crate) const IMPORT: &str = "\
Examples:
  train import --from gpt2 --out runs/gpt2
  train import --from smollm2 --out runs/base --set memory.device_budget=6GiB";

pub(crate) const EXPORT: &str = "\
Examples:
  train export --from runs/chat --out chat                              for the family's own library
  train export --from runs/chat --out small --layout gguf --dtype q8_0  for llama.cpp";

pub(crate) const PREPARE: &str = "\
Examples:
  train prepare --input books --tokenizer gpt2 --out books-gpt2 --sequence 1024";

pub(crate) const REPORT: &str = "\
Examples:
  train report runs/toy";

pub(crate) const COMPARE: &str = "\
Examples:
  train compare runs/toy runs/all
  train compare runs/toy runs/all --out both.html";

pub(crate) const SCHEMA: &str = "\
Examples:
  train schema > spillway.schema.json";
