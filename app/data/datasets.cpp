#include "app/data/datasets.h"

#include <spdlog/fmt/fmt.h>

#include "app/data/text_codec.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/source_files.h"
#include "core/data/inspect.h"
#include "core/io/checksum.h"
#include "core/text/corpus/chat.h"
#include "models/flops.h"
#include "models/stage_parallelism.h"

namespace pptrain::app {

std::vector<std::filesystem::path> StreamFiles::files() const {
  return source_files(paths, config::file_endings(options.format));
}

std::vector<StreamFiles> streams_of(const config::JobConfig& job, Wanted wanted) {
  std::vector<StreamFiles> streams;
  const std::vector<config::DataSource> sources = config::data_sources(job);
  for (size_t i = 0; i < sources.size(); ++i) {
    const config::DataSource& source = sources[i];
    const auto add = [&](const char* key, const std::vector<std::string>& paths) {
      const bool random = source.format == config::DataFormat::random && key == std::string_view("path");
      if (paths.empty() && !random) return;
      streams.push_back({.source = i,
                         .validation = key == std::string_view("val_path"),
                         .key = config::source_key(job, i, key),
                         .paths = paths,
                         .options = source,
                         .seed = static_cast<uint64_t>(job.run.seed) ^ (0x9e3779b97f4a7c15 * i)});
    };
    if (wanted != Wanted::validation || source.val_fraction > 0) add("path", source.path);
    if (wanted != Wanted::training) add("val_path", source.val_path);
  }
  return streams;
}

data::Source data_source(const StreamFiles& stream) {
  return {.paths = stream.paths,
          .format = stream.options.format,
          .token_bytes = stream.options.dtype == config::TokenType::uint16 ? 2 : 4,
          .seed = stream.seed};
}

namespace {

corpus::DocumentFormat document_format(const config::JobConfig& job, const config::DataSource& source,
                                       const std::filesystem::path& tokenizer) {
  return {
      .kind = source.format,
      .key = source.text_key,
      .prompt_key = source.prompt_key,
      .completion_key = source.completion_key,
      .messages_key = source.messages_key,
      .chat = source.messages_key.empty() ? nullptr : corpus::make_chat_template(job.data.chat, tokenizer),
      .tokens_key = source.tokens_key,
      .labels_key = source.labels_key,
      .vocab_size = job.model.vocab_size,
      .separator = source.document_separator,
      .skip_bad_lines =
          source.format == config::DataFormat::jsonl && job.data.bad_lines == config::BadLines::skip};
}

}  // namespace

corpus::TokenizeRequest cache_request(const config::JobConfig& job, const StreamFiles& stream) {
  const bool needs_tokenizer = stream.options.tokens_key.empty();
  const std::filesystem::path tokenizer = needs_tokenizer ? tokenizer_of(job) : "";
  if (needs_tokenizer && tokenizer.empty())
    throw UsageError(
        "data.tokenizer: texts are made tokens, but model.hf_dir has no tokenizer.json: give one");
  corpus::TokenizeRequest request{.files = stream.files(),
                                  .tokenizer = tokenizer,
                                  .format = document_format(job, stream.options, tokenizer),
                                  .add_special = job.data.add_special,
                                  .max_tokens = job.data.max_document_tokens};
  if (request.format.has_tokens()) return request;
  if (job.data.document_end >= 0) request.end_id = static_cast<int32_t>(job.data.document_end);
  return request;
}

std::string data_fingerprint(const config::JobConfig& job, const StreamFiles& stream) {
  if (config::is_tokenized(job, stream.options)) return corpus::fingerprint(cache_request(job, stream));
  return data::fingerprint(data::data_files(data_source(stream)));
}

std::string data_fingerprint(const config::JobConfig& job) {
  std::vector<std::string> each;
  for (const StreamFiles& stream : streams_of(job, Wanted::all)) {
    if (!stream.validation) each.push_back(data_fingerprint(job, stream));
  }
  if (each.size() == 1) return each.front();
  io::Checksum all;
  for (const std::string& one : each) all.add(std::as_bytes(std::span(one)));
  return all.hex();
}

namespace {

data::TokenDataset open_stream(const config::JobConfig& job, int64_t vocab_size, const TokenFiles& caches,
                               const StreamFiles& stream) {
  if (!config::is_tokenized(job, stream.options)) return {data_source(stream), vocab_size};
  const std::string cache = caches.at(stream.key).string();
  try {
    return {{.paths = {cache}, .format = data::Format::megatron}, vocab_size};
  } catch (const Error& error) {
    throw Error(fmt::format("{}. It was made of {}; remove its folder, and the next start makes it again",
                            error.what(), stream.key));
  }
}

void log_source(const OpenSource& source) {
  for (const auto& [what, tokens] :
       {std::pair("training", &source.train), {"validation", &source.validation}})
    if (*tokens && logs(Subsystem::data, spdlog::level::info))
      log_of(Subsystem::data)
          .info("source {}: {} of {} tokens in '{}'", source.name.empty() ? "(the only one)" : source.name,
                what, (*tokens)->size(), (*tokens)->path());
}

}  // namespace

std::vector<OpenSource> open_data(const config::JobConfig& job, int64_t vocab_size, const TokenFiles& caches,
                                  Wanted wanted) {
  std::vector<OpenSource> opened;
  for (const config::DataSource& source : config::data_sources(job))
    opened.push_back(
        {.name = source.name, .weight = source.weight, .bytes = config::is_of_bytes(job, source)});
  for (const StreamFiles& stream : streams_of(job, wanted)) {
    data::TokenDataset tokens = open_stream(job, vocab_size, caches, stream);
    OpenSource& source = opened[stream.source];
    if (stream.validation) {
      source.validation = std::move(tokens);
      continue;
    }
    if (auto held_out = data::split_off(tokens, stream.options.val_fraction))
      source.validation = std::move(held_out);
    source.train = std::move(tokens);
  }
  for (const OpenSource& source : opened) log_source(source);
  return opened;
}

std::vector<data::WeightedStream> training_streams(const std::vector<OpenSource>& sources) {
  std::vector<data::WeightedStream> streams;
  for (const OpenSource& source : sources) streams.push_back({source.train.value(), source.weight});
  return streams;
}

data::LoaderOptions loader_options(const Plan& plan) {
  const config::TrainSection& train = plan.job.train;
  const config::DataSection& data = plan.job.data;
  return {.seq_len = train.seq_len,
          .micro_batch_size = train.micro_batch_size,
          .microbatches = train.grad_accum_steps,
          .dp_size = plan.mesh.size(mesh::Group::batch),
          .cp_size = plan.mesh.cp,
          .cp_order = models::order_of(plan.job.distributed.cp_kind),
          .document_end = data.document_end >= 0 ? std::optional(data.document_end) : std::nullopt,
          .packing = data.packing,
          .lengths = data.lengths,
          .pad_to_multiple_of = data.pad_to_multiple_of,
          .tp_size = plan.mesh.tp,
          .attention_length = models::attention_length(plan.model),
          .sequence_slices = static_cast<int>(plan.job.distributed.pp_sequence_slices),
          .need_tokens = false,
          .need_labels = false};
}

data::LoaderOptions loader_options(const RunContext& context) {
  const schedule::Schedule& schedule = context.plan.schedule;
  mesh::DeviceMesh& mesh = context.mesh;
  const int pp = mesh.coordinate(mesh::Axis::pp);
  data::LoaderOptions options = loader_options(context.plan);
  options.dp_rank = mesh.place(mesh::Group::batch);
  options.cp_rank = mesh.coordinate(mesh::Axis::cp);
  options.need_tokens = pp == schedule.rank_of(0);
  options.need_labels = schedule.has_head(pp);
  options.device = context.device;
  return options;
}

}  // namespace pptrain::app
