// SPDX-License-Identifier: Apache-2.0
#include "job/names_elsewhere.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace lockstep::job {
namespace {

struct Names {
  const char* here;
  const char* elsewhere;
};

// A name of `elsewhere` may stand in several lines.
constexpr Names kNames[] = {
    {"global_batch", "batch_size train_batch_size per_device_train_batch_size bsz bs"},
    {"lr", "learning_rate max_lr"},
    {"accumulate",
     "gradient_accumulation_steps grad_accumulation_steps gradient_accumulation grad_accumulation "
     "accumulation_steps accumulate_grad_batches grad_accum grad_accum_steps accum_steps"},
    {"steps", "max_iters max_steps num_steps total_steps iterations"},
    {"epochs", "num_epochs num_train_epochs max_epochs n_epochs"},
    {"schedule", "scheduler lr_scheduler lr_scheduler_type"},
    {"cosine", "cosineannealinglr cosine_annealing"},
    {"step", "steplr multisteplr"},
    {"one_cycle", "onecyclelr"},
    {"min_factor", "eta_min min_lr"},
    {"warmup_steps", "warmup warmup_iters num_warmup_steps"},
    {"clip_norm",
     "max_grad_norm max_norm grad_clip grad_clip_norm gradient_clipping gradient_clip_val "
     "clip_grad_norm"},
    {"precision", "amp autocast mixed_precision dtype torch_dtype"},
    {"loss_scale", "grad_scaler gradscaler scaler"},
    {"tail", "drop_last"},
    {"beta1", "betas"},
    {"recompute", "gradient_checkpointing activation_checkpointing"},
    {"offload_optimizer", "cpu_offload"},
    {"early_stop", "early_stopping"},
    {"seed", "random_seed manual_seed"},
    {"eval", "evaluation eval_strategy eval_steps"},
    {"sequence", "modules"},
    {"layers", "n_layer n_layers num_layers num_hidden_layers"},
    {"heads", "n_head n_heads nhead num_heads num_attention_heads"},
    {"width", "n_embd d_model hidden_size embed_dim embedding_dim hidden_dim"},
    {"hidden", "hidden_size hidden_sizes hidden_dim hidden_layers"},
    {"inner", "intermediate_size dim_feedforward"},
    {"context", "block_size seq_len seq_length max_position_embeddings n_positions n_ctx"},
    {"vocab", "vocab_size num_embeddings"},
    {"linear", "dense fc"},
    {"conv", "conv2d"},
    {"batch_norm", "batchnorm2d batchnorm bn"},
    {"nproc_per_node", "world_size nproc num_gpus num_processes gpus"},
    {"nodes", "nnodes num_nodes num_machines"},
    {"cpus_per_proc", "num_threads omp_num_threads"},
    {"every", "save_steps save_every checkpoint_every"},
    {"keep", "save_total_limit"},
    {"resume", "resume_from_checkpoint"},
    {"dir", "save_dir output_dir"},
};

std::string Folded(absl::string_view name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"-", "_"}});
}

}  // namespace

std::vector<std::string> NamesHere(absl::string_view name) {
  const std::string folded = Folded(name);
  std::vector<std::string> here;
  for (const Names& names : kNames) {
    for (const absl::string_view other : absl::StrSplit(names.elsewhere, ' ')) {
      if (other == folded) here.emplace_back(names.here);
    }
  }
  return here;
}

}  // namespace lockstep::job
