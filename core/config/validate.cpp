#include "core/config/validate.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/source_files.h"
#include "core/base/special_file.h"
#include "core/config/data_sources.h"
#include "core/config/field.h"
#include "core/config/nearest.h"
#include "core/config/options.h"

namespace pptrain::config {

std::vector<std::string> warnings(const JobConfig& job) {
  std::vector<std::string> result;
  const int64_t warmup = job.lr_schedule.warmup_steps.value_or(0), steps = job.train.steps;
  if (warmup > steps) {
    result.push_back(
        fmt::format("lr_schedule.warmup_steps = {} is more than train.steps = {}: the learning rate rises to "
                    "{:.1f} % of optimizer.lr, and there the run ends",
                    warmup, steps, 100.0 * static_cast<double>(steps) / static_cast<double>(warmup)));
  }
  return result;
}

namespace {

namespace fs = std::filesystem;

// Keys of [model] that fix which weights there are and their shapes.
constexpr std::string_view fixed_by_hf =
    "arch hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "vocab_size tie_word_embeddings attention_bias mlp_bias num_experts num_experts_per_tok "
    "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank qk_nope_head_dim "
    "qk_rope_head_dim v_head_dim norm_topk_prob decoder_sparse_step mlp_only_layers";

std::string value_of(std::string_view option, const JobConfig& job) {
  return toml_value(*find_option(option), job).value_or("unset");
}

bool has_weights(const std::string& dir) {
  std::error_code error;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) return true;
  }
  return false;
}

void require_files(Document& document, const std::string& option, const std::vector<std::string>& paths,
                   DataFormat format) {
  if (document.broken.contains(option)) return;
  try {
    source_files(paths, file_endings(format));
  } catch (const Error& error) {
    document.report(option, error.what());
  }
}

void check_hf_weights(Document& document, bool needs_files) {
  const ModelSection& model = document.job.model;
  if (model.init != Init::hf) return;
  if (model.hf_dir.empty()) {
    document.report_conflict({"model.init", "model.hf_dir"},
                             "init = \"hf\" needs model.hf_dir, the directory of the weights");
  } else if (needs_files && !has_weights(model.hf_dir)) {
    document.report_conflict(
        {"model.init", "model.hf_dir"},
        fmt::format("init = \"hf\", but \"{}\" has no model*.safetensors", model.hf_dir));
  }
}

void check_axes(Document& document) {
  const DistributedSection& d = document.job.distributed;
  if (document.given("distributed.dp") && document.given("distributed.dp_shard")) {
    document.report("distributed.dp", "dp is short for dp_shard: give one of the two");
  }
  for (const auto& [option, size] :
       {std::pair("distributed.dp", d.dp.value_or(1)), std::pair("distributed.dp_shard", d.dp_shard)}) {
    if (size != 0) continue;
    document.report(option,
                    "0 is out of range: give the number of ranks, or -1 for what the other axes leave");
  }
}

void check_data_files(Document& document) {
  const std::vector<DataSource> sources = data_sources(document.job);
  for (size_t i = 0; i < sources.size(); ++i) {
    const DataSource& source = sources[i];
    require_files(document, source_key(document.job, i, "path"), source.path, source.format);
    require_files(document, source_key(document.job, i, "val_path"), source.val_path, source.format);
  }
}

// [[data.sources]] say all that these keys of [data] are short for.
void check_short_form(Document& document) {
  if (document.job.data.sources.empty()) {
    if (document.given("data.sources") && !document.broken.contains("data.sources"))
      document.report("data.sources", "is empty: give a source, or data.path");
    return;
  }
  for (const char* key :
       {"path", "format", "dtype", "text_key", "prompt_key", "completion_key", "messages_key", "tokens_key",
        "labels_key", "document_separator", "val_fraction", "val_path"}) {
    const std::string name = fmt::format("data.{}", key);
    const Option& option = *find_option(name);
    if (document.given(name) && toml_value(option, document.job) != toml_value(option, JobConfig()))
      document.report(name,
                      fmt::format("with [[data.sources]], {} is said of each source: move it there", key));
  }
}

using ReportKey = std::function<void(std::string_view key, const std::string& text)>;

bool holds_records(const DataSource& source) {
  return source.format == DataFormat::jsonl || source.format == DataFormat::parquet;
}

// The keys of a source in [[data.sources]] that act only with other formats. Those of [data] are options with
// conditions.
void check_format_keys(const DataSource& source, const ReportKey& report) {
  const bool records = holds_records(source);
  const DataSource defaults;
  const auto only_with = [&](const char* key, bool acts, bool changed, const char* formats) {
    if (changed && !acts)
      report(key, fmt::format("acts only with format = {}, which is {} here: remove it, or change that",
                              formats, toml_string(source.format.text)));
  };
  only_with("dtype", source.format == DataFormat::bin, source.dtype != defaults.dtype, "bin");
  only_with("text_key", records, source.text_key != defaults.text_key, "jsonl or parquet");
  only_with("prompt_key", records, !source.prompt_key.empty(), "jsonl or parquet");
  only_with("completion_key", records, !source.completion_key.empty(), "jsonl or parquet");
  only_with("messages_key", records, !source.messages_key.empty(), "jsonl or parquet");
  only_with("tokens_key", records, !source.tokens_key.empty(), "jsonl or parquet");
  only_with("labels_key", records, !source.labels_key.empty(), "jsonl or parquet");
  only_with("document_separator", source.format == DataFormat::text, !source.document_separator.empty(),
            "text");
}

// Of the keys that say where a record's text is, one may be given.
void check_text_keys(const DataSource& source, const ReportKey& report) {
  std::vector<const char*> given;
  if (source.text_key != DataSource().text_key) given.push_back("text_key");
  if (!source.prompt_key.empty()) given.push_back("prompt_key");
  if (!source.messages_key.empty()) given.push_back("messages_key");
  if (!source.tokens_key.empty()) given.push_back("tokens_key");
  if (given.size() > 1)
    report(given[0], fmt::format("{} and {} exclude each other: remove one of them", given[0], given[1]));
  if (holds_records(source) && source.text_key.empty() && given == std::vector<const char*>{"text_key"})
    report("text_key", "is empty: give the key of a document's text");
}

// The keys of one source that need or exclude each other.
void check_source_keys(const Document& document, const DataSource& source, const ReportKey& report) {
  if (!document.job.data.sources.empty()) check_format_keys(source, report);
  if (!source.document_separator.empty() && is_of_bytes(document.job, source))
    report("document_separator",
           "acts only with a tokenizer, which makes tokens of the text: give data.tokenizer, or remove it");
  if (source.prompt_key.empty() != source.completion_key.empty())
    report(source.prompt_key.empty() ? "completion_key" : "prompt_key",
           "prompt_key and completion_key go together: give both, or text_key alone");
  if (!source.labels_key.empty() && source.tokens_key.empty())
    report("labels_key", "labels_key goes with tokens_key: give both");
  check_text_keys(source, report);
}

// Random tokens have no files, and no ends of documents.
void check_random(const JobConfig& job, const DataSource& source, const ReportKey& report) {
  if (source.format != DataFormat::random) return;
  const auto refuse = [&](const char* key) {
    report(key, fmt::format("format = \"random\" takes no {}: remove it, or give another format", key));
  };
  if (!source.path.empty()) refuse("path");
  if (!source.val_path.empty()) refuse("val_path");
  if (source.val_fraction > 0) refuse("val_fraction");
  if (job.data.document_end >= 0)
    report("format", "random tokens have no documents, which data.document_end = -1 says: remove it");
}

void check_source(Document& document, size_t index, const DataSource& source) {
  const auto report = [&](std::string_view key, const std::string& text) {
    const std::string name = source_key(document.job, index, key);
    document.report_conflict({name, "data.sources"}, text);
  };
  if (!document.job.data.sources.empty()) {
    const bool plain = std::ranges::all_of(source.name, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
    });
    if (!plain)
      report("name",
             fmt::format("{} is no name of letters, digits, '.', '_' and '-'", toml_string(source.name)));
    for (size_t i = 0; i < index; ++i) {
      if (document.job.data.sources[i].name == source.name)
        report("name", fmt::format("two sources are called {}", toml_string(source.name)));
    }
  }
  check_source_keys(document, source, report);
  check_random(document.job, source, report);
  const int64_t vocab = document.job.model.vocab_size;
  if (is_of_bytes(document.job, source) && vocab != 0 && vocab < 256) {
    document.report_conflict(
        {"model.vocab_size", source_key(document.job, index, "format"), "model.hf_dir"},
        fmt::format("vocab_size = {}, but data.format = \"text\" has tokens from 0 to 255: give at least 256",
                    vocab));
  }
  if (source.val_fraction > 0 && !source.val_path.empty())
    report("val_fraction", "val_fraction and val_path both name the validation data: give one of the two");
}

// A conversation's answers must be marked somehow, or all roles read alike.
void check_chat(Document& document) {
  const ChatSection& chat = document.job.data.chat;
  const bool any = std::ranges::any_of(data_sources(document.job),
                                       [](const DataSource& s) { return !s.messages_key.empty(); });
  if (any && chat.style == ChatStyle::custom && chat.assistant_prefix.empty() && chat.user_prefix.empty())
    document.report_conflict(
        {"data.chat.template", "data.messages_key", "data.sources"},
        "conversations need a template: give data.chat.template = \"folder\" (the model's own), \"chatml\", "
        "\"llama3\", \"mistral\", \"gemma\" or \"qwen\", or the texts around each role's messages "
        "(data.chat.user_prefix, ...)");
}

void check_data(Document& document) {
  const DataSection& data = document.job.data;
  const ModelSection& model = document.job.model;
  check_short_form(document);
  const std::vector<DataSource> sources = data_sources(document.job);
  for (size_t i = 0; i < sources.size(); ++i) check_source(document, i, sources[i]);
  if (model.vocab_size != 0 && data.document_end >= model.vocab_size) {
    document.report_conflict(
        {"data.document_end", "model.vocab_size", "model.hf_dir"},
        fmt::format("document_end = {} is no token of vocab_size = {}", data.document_end, model.vocab_size));
  }
  if (any_of_texts(document.job) && data.tokenizer.empty() && model.hf_dir.empty()) {
    document.report_conflict({"data.tokenizer", "data.format", "data.sources"},
                             "texts are made tokens, but there is no tokenizer: give data.tokenizer, or "
                             "model.hf_dir that has one");
  }
  check_chat(document);
  if (!any_tokenized(document.job) && (!data.cache.empty() || !data.add_special)) {
    document.report_conflict({data.cache.empty() ? "data.add_special" : "data.cache"},
                             "acts only where a tokenizer makes tokens of texts: data.format = jsonl or "
                             "parquet, or text with data.tokenizer");
  }
  if (document.job.eval.interval > 0 && !has_validation(document.job)) {
    constexpr const char* missing = "there is no validation data: give data.val_fraction or data.val_path";
    if (document.given("eval.interval")) {
      document.report_conflict(
          {"eval.interval", "data.val_fraction", "data.val_path"},
          fmt::format("interval = {} validates, but {}", document.job.eval.interval, missing));
    } else {
      document.report_conflict({"data.val_fraction", "data.val_path"}, missing);
    }
  }
}

// Steps of several sizes run one list after the other: nothing may span two of them.
void check_batch_steps(Document& document) {
  const JobConfig& job = document.job;
  const std::vector<BatchStep>& steps = job.train.grad_accum_schedule;
  if (steps.empty()) return;
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].from_step > steps[i - 1].from_step) continue;
    document.report_conflict({fmt::format("train.grad_accum_schedule[{}].from_step", i)},
                             fmt::format("step {} comes after step {}: entries must ascend",
                                         steps[i].from_step, steps[i - 1].from_step));
  }
  const auto refuse = [&](bool found, const char* key, const char* text) {
    if (found) document.report_conflict({key, "train.grad_accum_schedule"}, text);
  };
  refuse(job.optimizer.post_validation, "optimizer.post_validation",
         "a step is validated in the next one, which train.grad_accum_schedule may make of another size: "
         "remove one of the two");
  refuse(job.data.balance == Balance::schedule, "data.balance",
         "\"schedule\" divides documents for one number of microbatches: leave out "
         "train.grad_accum_schedule, or data.balance");
  refuse(job.distributed.pp_head != HeadPlace::last, "distributed.pp_head",
         "the order of a spread head is made for one number of microbatches: use \"last\" with "
         "train.grad_accum_schedule");
  refuse(job.profile.trace, "profile.trace",
         "a trace has steps of one size: leave out train.grad_accum_schedule while you trace");
}

void check_profile(Document& document) {
  const ProfileSection& profile = document.job.profile;
  if (profile.trace && profile.first_step > document.job.train.steps) {
    document.report_conflict(
        {"profile.first_step", "train.steps", "profile.trace"},
        fmt::format("the first step to trace is {}, but the run has {}: give a smaller profile.first_step",
                    profile.first_step, document.job.train.steps));
  }
}

void check_metrics(Document& document) {
  if (document.job.metrics.microbatch_losses && document.job.optimizer.post_validation)
    document.report_conflict(
        {"metrics.microbatch_losses", "optimizer.post_validation"},
        "microbatch_losses waits for each step's losses, which post_validation does not: remove one of them");
  const std::string& file = document.job.metrics.prometheus_file;
  if (!file.empty() && !file.ends_with(".prom"))
    document.report(
        "metrics.prometheus_file",
        fmt::format("{} does not end in .prom: the textfile collector of node_exporter reads only "
                    "such files",
                    toml_string(file)));
}

void check_resume(Document& document) {
  const std::string& resume = document.job.checkpoint.resume;
  std::error_code error;
  // It counts for the first start alone: what a run of weeks began with may have been deleted since.
  const bool used = fs::exists(fs::path(document.job.run.dir) / "checkpoints", error);
  if (resume_of(resume) == Resume::named && !used && !fs::exists(resume, error)) {
    document.report(
        "checkpoint.resume",
        fmt::format("{} does not exist; expected auto, none, restart, or the path of a checkpoint",
                    toml_string(resume)));
  }
}

void check_lora(Document& document) {
  const JobConfig& job = document.job;
  if (job.lora.dropout > 0) document.report("lora.dropout", "the layers have no dropout: leave it 0");
  const auto frozen = std::ranges::find_if(job.optimizer.groups, &OptimizerGroup::frozen);
  if (job.lora.rank > 0 && frozen != job.optimizer.groups.end()) {
    document.report_conflict(
        {fmt::format("optimizer.groups[{}].frozen", frozen - job.optimizer.groups.begin()), "lora.rank"},
        "with lora.rank everything but the adapters is frozen: remove it, or choose lora.targets");
  }
  if (job.lora.rank > 0 && job.model.router_bias_update_rate > 0) {
    document.report_conflict(
        {"model.router_bias_update_rate", "lora.rank"},
        "with lora.rank everything but the adapters is frozen, the bias on the choice of "
        "experts too: remove this key");
  }
}

void check_run_dir(Document& document) {
  if (document.job.run.dir.empty()) {
    document.report("run.dir", "is empty: give the folder of the run's output");
  }
}

// Does the job's file leave what decides the condition to the ranks launched, or to the command line?
bool filled_by_ranks(const Document& document, const Condition& condition) {
  return std::ranges::any_of(condition.keys,
                             [&](const std::string& key) { return document.filled.contains(key); });
}

bool is_decided_after(const Document& document, const Origin& given, const Condition& condition) {
  return std::ranges::any_of(condition.keys, [&](const std::string& key) {
    const auto chosen = document.options.find(key);
    return chosen != document.options.end() && chosen->second.is_after(given);
  });
}

// "distributed.cp > 1, which is 1 here"; of several keys each with its value.
std::string describe_unmet(const Condition& condition, const JobConfig& job) {
  if (condition.keys.size() == 1)
    return fmt::format("{}, which is {} here", condition.words, value_of(condition.keys.front(), job));
  std::string values;
  for (const std::string& key : condition.keys) {
    if (const auto value = toml_value(*find_option(key), job))
      values += fmt::format("{}{} = {}", values.empty() ? "" : ", ", key.substr(key.rfind('.') + 1), *value);
  }
  return fmt::format("{}; here {}", condition.words, values);
}

// An option that the job sets but whose condition does not hold. A file's options are forgiven if an
// override, or a file that includes it, changed what they depend on, so that lr_schedule.name=cosine can be
// tried on a job written for wsd, and distributed.cp=1 on one with a cp_kind.
void check_conditions(Document& document) {
  const JobConfig defaults;
  for (const Option& option : options()) {
    const auto given = document.options.find(option.name());
    if (!option.acts_when || given == document.options.end()) continue;
    const Condition& condition = *option.acts_when;
    const std::optional<std::string> value = toml_value(option, document.as_read);
    if (condition.test(document.job) || value == toml_value(option, defaults) || value == condition.harmless)
      continue;
    if (!given->second.from_override && filled_by_ranks(document, condition)) continue;
    if (is_decided_after(document, given->second, condition)) {
      document.forgiven.insert(option.name());
      continue;
    }
    if (std::ranges::any_of(condition.keys,
                            [&](const std::string& key) { return document.broken.contains(key); })) {
      continue;
    }
    document.report_conflict({option.name()}, fmt::format("acts only with {}: remove it, or change that",
                                                          describe_unmet(condition, document.job)));
  }
}

}  // namespace

void apply_hf_dir(Document& document, const ReadHfConfig& read_hf_config) {
  const std::string dir = document.job.model.hf_dir;
  if (dir.empty()) return;
  JobConfig hf;
  try {
    if (!read_hf_config) throw UsageError("Hugging Face directories are not read here");
    hf.model = read_hf_config(dir);
  } catch (const UsageError& error) {
    document.report("model.hf_dir", error.what());
    document.broken.insert("model.hf_dir");
    return;
  }
  for (const Option& option : options()) {
    const std::string name = option.name();
    if (!name.starts_with("model.") || name == "model.hf_dir" || name == "model.init") continue;
    const std::string theirs = toml_value(option, hf).value_or("");
    const std::string ours = toml_value(option, document.job).value_or("");
    // A key that does not act on the directory's model may act on the job's: check_conditions() judges it. Of
    // numbers with a point only one means "from hf_dir" by 0; a cap's 0, for example, means none.
    const bool acts = !option.acts_when || option.acts_when->test(hf);
    if (!document.given(name) || ours == "0" || (ours == "0.0" && option.key == "attention_multiplier")) {
      copy_value(option, hf, document.job);
    } else if (acts && ours != theirs && has_word(fixed_by_hf, option.key)) {
      document.report_conflict(
          {name}, fmt::format("{} contradicts {} in {}: remove this key, or take another hf_dir", ours,
                              theirs, (fs::path(dir) / "config.json").string()));
    }
  }
}

void fill_world(Document& document, int64_t world) {
  DistributedSection& d = document.job.distributed;
  const bool by_dp = d.dp == -1;
  if (!by_dp && d.dp_shard != -1) return;
  const char* const option = by_dp ? "distributed.dp" : "distributed.dp_shard";
  document.filled.insert(option);
  const int64_t others = ranks_beside_dp_shard(d);
  int64_t left = 1;  // if no number fits: later checks run all the same
  if (others == 0) {
    // Too many ranks: check_products says so.
  } else if (world == 0) {
    document.report(option,
                    "-1 is what the other axes leave of the ranks launched, and none were: start the job "
                    "with a launcher, say --world N, or give a number");
  } else if (world % others != 0) {
    std::vector<std::string> axes;
    for (const AxisKey& axis : axis_keys) {
      if (axis.size != &DistributedSection::dp_shard)
        axes.push_back(fmt::format("{} {}", axis.option.substr(axis.option.rfind('.') + 1), d.*axis.size));
    }
    document.report(
        option, fmt::format("-1 is what the other axes leave of the ranks, but {} = {} does not divide {}",
                            fmt::join(axes, " x "), others, world));
  } else {
    left = world / others;
  }
  (by_dp ? *d.dp : d.dp_shard) = left;
}

void validate(Document& document, bool needs_files) {
  if (needs_files) {
    check_data_files(document);
    check_resume(document);
  }
  check_hf_weights(document, needs_files);
  check_axes(document);
  check_layout(document.job, [&](std::initializer_list<std::string_view> options, const std::string& text) {
    document.report_conflict(options, text);
  });
  check_data(document);
  check_batch_steps(document);
  check_profile(document);
  check_metrics(document);
  check_run_dir(document);
  check_lora(document);
  check_conditions(document);
}

void resolve(JobConfig& job) {
  if (job.distributed.dp) {
    job.distributed.dp_shard = *job.distributed.dp;
    job.distributed.dp.reset();
  }
  if (!job.lr_schedule.warmup_steps)
    job.lr_schedule.warmup_steps = std::min<int64_t>(2000, job.train.steps / 20);
  const JobConfig defaults;
  for (const Option& option : options()) {
    if (option.acts_when && !option.acts_when->test(job)) copy_value(option, defaults, job);
  }
}

}  // namespace pptrain::config
