#include "deck/aliases.hpp"

#include <algorithm>

namespace fourfold {
namespace {

constexpr const char* kMegatron = "Megatron-LM";
constexpr const char* kTitan = "torchtitan";
constexpr const char* kDeepSpeed = "DeepSpeed";
constexpr const char* kHugging = "Hugging Face";

constexpr Alias kAliases[] = {
    {"tensor_model_parallel_size", kMegatron, "parallel.dense.row", ""},
    {"pipeline_model_parallel_size", kMegatron, "parallel.stages", ""},
    {"virtual_pipeline_model_parallel_size", kMegatron, "parallel.interleave", "with parallel.schedule: interleaved"},
    {"context_parallel_size", kMegatron, "parallel.dense.depth", "with parallel.depth_splits: sequence"},
    {"expert_model_parallel_size", kMegatron, "parallel.moe.expert", ""},
    {"expert_tensor_parallel_size", kMegatron, "parallel.moe.row", ""},
    {"sequence_parallel", kMegatron, "parallel.sequence_shard", ""},
    {"use_distributed_optimizer", kMegatron, "optimizer.shard", "type data"},
    {"num_layers", kMegatron, "model.layers", ""},
    {"hidden_size", kMegatron, "model.hidden", ""},
    {"ffn_hidden_size", kMegatron, "model.ffn.hidden", ""},
    {"num_attention_heads", kMegatron, "model.heads", ""},
    {"num_query_groups", kMegatron, "model.kv_heads", ""},
    {"kv_channels", kMegatron, "model.head_dim", ""},
    {"seq_length", kMegatron, "model.sequence", ""},
    {"position_embedding_type", kMegatron, "model.positions", ""},
    {"rotary_base", kMegatron, "model.rope_theta", ""},
    {"normalization", kMegatron, "model.norm", ""},
    {"norm_epsilon", kMegatron, "model.norm_eps", ""},
    {"hidden_dropout", kMegatron, "model.dropout", ""},
    {"attention_dropout", kMegatron, "model.dropout", ""},
    {"init_method_std", kMegatron, "model.init.std", ""},
    {"untie_embeddings_and_output_weights", kMegatron, "model.tie_embeddings", "the other way round"},
    {"num_experts", kMegatron, "model.moe.experts", ""},
    {"moe_router_topk", kMegatron, "model.moe.top_k", ""},
    {"moe_ffn_hidden_size", kMegatron, "model.moe.hidden", ""},
    {"moe_layer_freq", kMegatron, "model.moe.every", ""},
    {"moe_aux_loss_coeff", kMegatron, "model.moe.balance.aux", ""},
    {"moe_z_loss_coeff", kMegatron, "model.moe.balance.z", ""},
    {"moe_expert_capacity_factor", kMegatron, "model.moe.capacity.factor", ""},
    {"moe_router_bias_update_rate", kMegatron, "model.moe.balance.bias_rate", ""},
    {"micro_batch_size", kMegatron, "batch.micro", ""},
    {"global_batch_size", kMegatron, "batch.global", ""},
    {"train_iters", kMegatron, "run.steps", ""},
    {"min_lr", kMegatron, "optimizer.schedule.final", ""},
    {"lr_decay_style", kMegatron, "optimizer.schedule.kind", ""},
    {"lr_warmup_iters", kMegatron, "optimizer.schedule.warmup", ""},
    {"adam_beta1", kMegatron, "optimizer.betas", "both in one list"},
    {"adam_beta2", kMegatron, "optimizer.betas", "both in one list"},
    {"adam_eps", kMegatron, "optimizer.eps", ""},
    {"clip_grad", kMegatron, "optimizer.clip", ""},
    {"recompute_granularity", kMegatron, "parallel.activations.default",
     "type recompute, or parallel.activations.sublayers for parts of blocks"},
    {"save_interval", kMegatron, "checkpoint.every", ""},
    {"async_save", kMegatron, "checkpoint.mode", "type async"},
    {"eval_interval", kMegatron, "eval.every", ""},
    {"eval_iters", kMegatron, "eval.samples", "samples, not batches"},
    {"data_path", kMegatron, "data.train", ""},
    {"tokenizer_model", kMegatron, "data.tokenizer", ""},
    {"tensor_parallel_degree", kTitan, "parallel.dense.row", ""},
    {"pipeline_parallel_degree", kTitan, "parallel.stages", ""},
    {"pipeline_parallel_schedule", kTitan, "parallel.schedule", ""},
    {"pipeline_parallel_microbatch_size", kTitan, "batch.micro", ""},
    {"context_parallel_degree", kTitan, "parallel.dense.depth", "with parallel.depth_splits: sequence"},
    {"expert_parallel_degree", kTitan, "parallel.moe.expert", ""},
    {"data_parallel_replicate_degree", kTitan, "parallel.dense.data", ""},
    {"data_parallel_shard_degree", kTitan, "parallel.dense.depth", ""},
    {"local_batch_size", kTitan, "batch.micro", ""},
    {"seq_len", kTitan, "model.sequence", ""},
    {"warmup_steps", kTitan, "optimizer.schedule.warmup", ""},
    {"max_norm", kTitan, "optimizer.clip", ""},
    {"mixed_precision_param", kTitan, "precision.compute", ""},
    {"activation_checkpoint", kTitan, "parallel.activations.default",
     "type recompute, or parallel.activations.sublayers for parts of blocks"},
    {"checkpoint.async", kTitan, "checkpoint.mode", "type async"},
    {"checkpoint.async_mode", kTitan, "checkpoint.mode", "type async"},
    {"checkpoint.interval", kTitan, "checkpoint.every", ""},
    {"keep_latest_k", kTitan, "checkpoint.keep", ""},
    {"dataset_path", kTitan, "data.train", ""},
    {"n_layers", kTitan, "model.layers", ""},
    {"n_heads", kTitan, "model.heads", ""},
    {"n_kv_heads", kTitan, "model.kv_heads", ""},
    {"dim", kTitan, "model.hidden", ""},
    {"train_batch_size", kDeepSpeed, "batch.global", ""},
    {"train_micro_batch_size_per_gpu", kDeepSpeed, "batch.micro", ""},
    {"gradient_accumulation_steps", kDeepSpeed, "batch.micro_batches", ""},
    {"gradient_accumulation", kDeepSpeed, "batch.micro_batches", ""},
    {"gradient_clipping", kDeepSpeed, "optimizer.clip", ""},
    {"zero_optimization", kDeepSpeed, "optimizer.shard", "stage 1: type data; stage 3 is parallel.dense.depth"},
    {"zero_stage", kDeepSpeed, "optimizer.shard", "stage 1: type data; stage 3 is parallel.dense.depth"},
    {"activation_checkpointing", kDeepSpeed, "parallel.activations.default", "type recompute"},
    {"bf16", kDeepSpeed, "precision.compute", "type bf16"},
    {"fp16", kDeepSpeed, "precision.compute", "type bf16: there is no fp16"},
    {"num_hidden_layers", kHugging, "model.layers", ""},
    {"num_key_value_heads", kHugging, "model.kv_heads", ""},
    {"intermediate_size", kHugging, "model.ffn.hidden", ""},
    {"moe_intermediate_size", kHugging, "model.moe.hidden", ""},
    {"max_position_embeddings", kHugging, "model.sequence", ""},
    {"vocab_size", kHugging, "model.vocab", ""},
    {"rms_norm_eps", kHugging, "model.norm_eps", ""},
    {"tie_word_embeddings", kHugging, "model.tie_embeddings", ""},
    {"num_local_experts", kHugging, "model.moe.experts", ""},
    {"num_experts_per_tok", kHugging, "model.moe.top_k", ""},
    {"router_aux_loss_coef", kHugging, "model.moe.balance.aux", ""},
    {"router_jitter_noise", kHugging, "model.moe.jitter", ""},
    {"learning_rate", kHugging, "optimizer.lr", ""},
    {"lr_scheduler_type", kHugging, "optimizer.schedule.kind", ""},
    {"max_grad_norm", kHugging, "optimizer.clip", ""},
    {"max_steps", kHugging, "run.steps", ""},
    {"n_layer", "nanoGPT", "model.layers", ""},
    {"n_head", "nanoGPT", "model.heads", ""},
    {"n_embd", "nanoGPT", "model.hidden", ""},
    {"block_size", "nanoGPT", "model.sequence", ""},
    {"parallel.tensor", "elsewhere", "parallel.dense.row", ""},
    {"parallel.tp", "elsewhere", "parallel.dense.row", ""},
    {"parallel.pp", "elsewhere", "parallel.stages", ""},
    {"parallel.pipeline", "elsewhere", "parallel.stages", ""},
    {"parallel.dp", "elsewhere", "parallel.dense.data", ""},
    {"parallel.fsdp", "elsewhere", "parallel.dense.depth", ""},
    {"parallel.cp", "elsewhere", "parallel.dense.depth", "with parallel.depth_splits: sequence"},
    {"parallel.ep", "elsewhere", "parallel.moe.expert", ""},
};

struct ValueAlias {
  const char* key;
  const char* value;
  const char* help;
};

constexpr const char* kNoHalf = "there is no fp16, which needs a loss scale; type bf16, which has fp32's range";
constexpr ValueAlias kValues[] = {
    {"precision.compute", "fp16", kNoHalf},
    {"precision.compute", "float16", kNoHalf},
    {"precision.compute", "half", kNoHalf},
    {"precision.compute", "fp8", "there is no fp8; type bf16"},
    {"precision.compute", "bfloat16", "type bf16"},
    {"precision.compute", "tf32", "there is no tf32; type fp32"},
    {"precision.compute", "float32", "type fp32"},
    {"precision.compute", "float", "type fp32"},
    {"precision.compute", "float64", "type fp64"},
    {"precision.compute", "double", "type fp64"},
    {"optimizer.kind", "adam", "type adamw; with weight_decay: 0.0 it is Adam"},
    {"parallel.activations.default", "full", "type recompute"},
    {"parallel.activations.default", "selective", "type keep, and parallel.activations.sublayers: [attention]"},
};

// "lr-warmup-iters" as "lr_warmup_iters".
std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace

std::span<const Alias> aliases() {
  return kAliases;
}

std::string alias_help(const std::string& path) {
  const std::string whole = with_underscores(path);
  const std::string last = whole.substr(whole.rfind('.') + 1);
  for (const std::string& name : {whole, last}) {
    for (const Alias& alias : kAliases) {
      if (name != alias.name) continue;
      const std::string note = alias.note[0] == '\0' ? "" : std::string(" (") + alias.note + ")";
      const std::string owner = std::string(alias.program) == "elsewhere" ? "" : std::string(alias.program) + "'s ";
      return "; " + owner + alias.name + " is " + alias.key + " here" + note;
    }
  }
  return "";
}

std::string value_help(const std::string& key, const std::string& value) {
  for (const ValueAlias& alias : kValues) {
    if (key == alias.key && value == alias.value) return std::string("; ") + alias.help;
  }
  return "";
}

}  // namespace fourfold
