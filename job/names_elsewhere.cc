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
  const char* difference = "";  // between what the two mean, if any
};

// A name of `elsewhere` may stand in several lines.
constexpr Names kNames[] = {
    {"global_batch", "train_batch_size"},
    {"global_batch", "batch_size per_device_train_batch_size bsz bs",
     "it counts the samples of all workers and micro-batches of a step together"},
    {"lr", "learning_rate max_lr"},
    {"accumulate",
     "gradient_accumulation_steps grad_accumulation_steps gradient_accumulation grad_accumulation "
     "accumulation_steps accumulate_grad_batches grad_accum grad_accum_steps accum_steps",
     "it divides the samples of 'global_batch', and does not multiply them"},
    {"steps", "max_iters max_steps num_steps total_steps iterations"},
    {"epochs", "num_epochs num_train_epochs max_epochs n_epochs"},
    {"schedule", "scheduler lr_scheduler lr_scheduler_type"},
    {"cosine", "cosineannealinglr cosine_annealing"},
    {"step", "steplr multisteplr", "it counts updates, not epochs"},
    {"one_cycle", "onecyclelr"},
    {"min_factor", "eta_min min_lr", "it is a factor of 'lr', not a rate"},
    {"warmup_steps", "warmup warmup_iters num_warmup_steps"},
    {"warmup_steps", "warmup_ratio warmup_epochs", "it counts updates"},
    {"clip_norm",
     "max_grad_norm max_norm grad_clip grad_clip_norm gradient_clipping gradient_clip_val "
     "clip_grad_norm"},
    {"precision", "amp autocast mixed_precision"},
    {"precision", "dtype torch_dtype",
     "'bf16' and 'fp16' keep weights in fp32, 'pure_bf16' and 'pure_fp16' do not"},
    {"loss_scale", "grad_scaler gradscaler scaler"},
    {"tail", "drop_last"},
    {"beta1", "betas", "the second one is 'beta2'"},
    {"recompute", "gradient_checkpointing activation_checkpointing"},
    {"offload_optimizer", "cpu_offload", "weights stay on the GPU"},
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
    {"nproc_per_node", "nproc num_gpus gpus"},
    {"nproc_per_node", "world_size num_processes", "it counts the workers of each node"},
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

// The lines in which `name` is one of elsewhere.
std::vector<const Names*> LinesOf(absl::string_view name) {
  const std::string folded = Folded(name);
  std::vector<const Names*> lines;
  for (const Names& names : kNames) {
    for (const absl::string_view other : absl::StrSplit(names.elsewhere, ' ')) {
      if (other == folded) lines.push_back(&names);
    }
  }
  return lines;
}

}  // namespace

std::vector<std::string> NamesHere(absl::string_view name) {
  std::vector<std::string> here;
  for (const Names* names : LinesOf(name)) here.emplace_back(names->here);
  return here;
}

std::string DifferenceHere(absl::string_view name, absl::string_view here) {
  for (const Names* names : LinesOf(name)) {
    if (names->here == here) return names->difference;
  }
  return "";
}

}  // namespace lockstep::job
