// The options of [data], [data.chat] and [[data.sources]].
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/config/data_sources.h"
#include "core/config/options/sections.h"

namespace pptrain::config {
namespace {

bool has_messages(const JobConfig& job) {
  return std::ranges::any_of(data_sources(job), [](const DataSource& s) { return !s.messages_key.empty(); });
}

bool has_lines(const JobConfig& job) {
  return std::ranges::any_of(data_sources(job),
                             [](const DataSource& s) { return s.format == DataFormat::jsonl; });
}

// What [data] and [[data.sources]] say alike of one source's files. has_conditions: options that other
// formats do not know act only with data.format.
void add_files(const SectionFields<DataSource>& fields, bool has_conditions) {
  const auto with = [&](std::vector<std::string> formats) {
    return has_conditions ? fields.only_with("data.format", std::move(formats)) : fields;
  };
  const auto records = with({"jsonl", "parquet"});
  fields("format", &DataSource::format,
         "text: each byte is a token; with data.tokenizer, each file is a document. jsonl: each line is an "
         "object with a document under text_key; .gz and .zst are unpacked. parquet: each row is a document. "
         "The tokenizer turns texts into token files once (data.cache). bin: tokens of dtype without a "
         "header. llmc: llm.c's format, with a header. megatron: Megatron-LM's PREFIX.bin with PREFIX.idx, "
         "which has the tokens' type and the documents' ends. npy: NumPy's, a one-dimensional array of "
         "integers. random: no files; uniform random tokens from run.seed, for benchmarks.");
  with({"bin"})("dtype", &DataSource::dtype, "Type of a token in a headerless file.");
  records("text_key", &DataSource::text_key, "Key, or column, of a document's text.");
  records("prompt_key", &DataSource::prompt_key,
          "Key, or column, of a prompt, whose tokens do not count in the loss. The answer is then under "
          "completion_key instead of text_key. Empty: no prompts.");
  records("completion_key", &DataSource::completion_key,
          "Key, or column, of the text after the prompt. Its tokens count in the loss.");
  records("messages_key", &DataSource::messages_key,
          "Key, or column, of a conversation in place of text_key: a list of {role, content} with the roles "
          "system, user and assistant. [data.chat] turns it into a text. Only the assistant's tokens count "
          "in the loss, except in messages with weight = 0 or train = false. Empty: no conversations.");
  records("tokens_key", &DataSource::tokens_key,
          "Key, or column, of a list of token ids in place of text_key. The document is already tokenized "
          "and gets no end token. Empty: texts.");
  records("labels_key", &DataSource::labels_key,
          "Key, or column, of a list of labels for tokens_key: each token's own id, or -100 if it does not "
          "count in the loss. Empty: all tokens count.");
  with({"text"})(
      "document_separator", &DataSource::document_separator,
      "Text between the documents of a file that a tokenizer reads. It belongs to no document. Empty: each "
      "file is a document.");
}

}  // namespace

void add_data(std::vector<Option>& options) {
  SectionFields<DataSection> data(
      options, "data", [](JobConfig& j) -> DataSection& { return j.data; }, Effect::data);
  SectionFields<DataSource> source(
      options, "data", [](JobConfig& j) -> DataSource& { return j.data; }, Effect::data);
  source(
      "path", &DataSource::path,
      "Training data, relative to the job's file: a file, a folder, a pattern such as \"data/*.bin\", or a "
      "list of these, read as one stream in this order. A folder stands for its files with the format's "
      "ending (.txt, .jsonl[.gz|.zst], .parquet, .npy or .bin), by name. With [[data.sources]], each source "
      "has this key, the next ones up to document_separator, val_fraction and val_path.")
      .path()
      .required_unless("data.sources")
      .needless("format", "random");
  add_files(source, /*has_conditions=*/true);
  data(
      "cache", &DataSection::cache,
      "Folder of token files, made from texts before the first step. Jobs with the same files, tokenizer "
      "and keys share them. Empty: pptrain_cache in the first file's folder, or run.dir/cache if that folder "
      "cannot be written.")
      .path(Names::written)
      .decides(Effect::none);
  data("add_special", &DataSection::add_special,
       "Adds the special tokens that the tokenizer puts around a text (its post_processor).");
  data("bad_lines", &DataSection::bad_lines,
       "What to do with a JSONL line without a document: no JSON, no object, no text under its key, or a "
       "conversation that [data.chat] does not accept. refuse: the run does not start. skip: such lines are "
       "left out; the log says how many, and where the first is.")
      .only_if("lines of texts: a source of format = jsonl", {"data.format"}, has_lines)
      .decides(Effect::none);
  data("max_document_tokens", &DataSection::max_document_tokens,
       "Truncates texts, conversations and lists of tokens to this many tokens, including the end token; the "
       "log says how many were truncated. 0: no truncation; a document longer than a row becomes several "
       "samples.")
      .between(0, max_size)
      .only_if("tokenized documents: data.format = jsonl or parquet, or text with data.tokenizer",
               {"data.format", "data.tokenizer"}, any_tokenized);
  data("document_end", &DataSection::document_end,
       "Id of the token that ends a document, such as a tokenizer's end of text. A row may then hold several "
       "documents: attention stays inside each, positions restart, and no token is predicted across an end. "
       "Texts get this token at their end if they lack it; conversations and tokens_key do not. -1: the "
       "tokenizer's eos_token for texts; none for token files, so each row is a document, except with "
       "data.format = megatron.")
      .between(-1, 1 << 28)
      .only_with("data.format", {"text", "jsonl", "parquet", "bin", "llmc", "npy"});
  const auto documents =
      data.only_if("known documents: data.document_end, data.format = megatron, or a tokenizer",
                   {"data.document_end", "data.format"}, has_documents);
  documents(
      "packing", &DataSection::packing,
      "How documents fill rows of train.seq_len tokens. sequential: one after the other; with fixed lengths, "
      "rows are full and documents are cut. best_fit: uncut, the documents that fill a row best. none: one "
      "document per row. If documents are not cut, a sample is a document. A document longer than a row "
      "becomes several rows, each with its own attention and positions.");
  documents(
      "lengths", &DataSection::lengths,
      "Number of tokens of a microbatch. fixed: micro_batch_size rows of seq_len; short rows are padded. "
      "exact: its documents' tokens without padding; a step's documents are divided into microbatches of "
      "about equal cost. padded: the tokens of the step's longest microbatch, rounded up to "
      "pad_to_multiple_of. The maximum is micro_batch_size * seq_len; memory and time are predicted for it.");
  data("balance", &DataSection::balance,
       "How a step's documents of exact lengths are divided into microbatches. microbatches: into "
       "microbatches of about equal cost; losses are equal on every pipeline. schedule: for the earliest "
       "predicted end of the schedule on the slowest data rank, with small microbatches first and last. "
       "Losses then differ by rounding between pipelines, schedules and predicted devices "
       "(distributed.pp_costs; a trace is ignored). A step takes the same documents either way.")
      .only_with("data.lengths", {"exact"})
      .decides(Effect::layout);
  data("pad_to_multiple_of", &DataSection::pad_to_multiple_of,
       "Rounds a padded microbatch up to a multiple of this many tokens on each context-parallel rank, "
       "unless it is full.")
      .between(1, max_size)
      .only_with("data.lengths", {"padded"});
  data("shuffle", &DataSection::shuffle,
       "true: samples in an order drawn from run.seed, new in each epoch. false: in the order of the file.");
  source("val_fraction", &DataSource::val_fraction,
         "Fraction of the tokens, taken from the end, for validation.")
      .from_up_to(0, 1);
  source("val_path", &DataSource::val_path,
         "Files, folders or patterns to validate on, in the same format; then val_fraction is 0.")
      .path()
      .decides(Effect::course);
  data("tokenizer", &DataSection::tokenizer,
       "Hugging Face's tokenizer.json, or a folder with one. It turns texts into tokens; with token files, "
       "give the one that made them. Prompts, samples and generated text need it. Empty: the one in "
       "model.hf_dir, if it exists; data.format = \"text\" then still means bytes, which model.init = \"hf\" "
       "refuses.")
      .path()
      .decides(Effect::none);
}

void add_chat(std::vector<Option>& options) {
  SectionFields<ChatSection> chat(
      options, "data.chat", [](JobConfig& j) -> ChatSection& { return j.data.chat; }, Effect::data);
  const auto custom = chat.only_if(
      "conversations (messages_key) and template = custom", {"data.messages_key", "data.chat.template"},
      [](const JobConfig& j) { return has_messages(j) && j.data.chat.style == ChatStyle::custom; });
  chat("template", &ChatSection::style,
       "Template of conversations: chatml, llama3 (Llama 3 Instruct), mistral (Mistral 7B Instruct v0.2), "
       "gemma (Gemma 2 it) or qwen (Qwen2.5 Instruct, without tools). Tokens are the same as from "
       "transformers' apply_chat_template with the published template. folder: the model's own template in "
       "the tokenizer's folder (chat_template.jinja, or tokenizer_config.json). custom: the keys below.")
      .only_if("conversations: a source with messages_key", {"data.messages_key"}, has_messages);
  custom("bos", &ChatSection::bos,
         "Text before a conversation. The tokenizer's special tokens are recognised in the texts of a "
         "template, but not in the contents of messages.");
  custom("system_prefix", &ChatSection::system_prefix, "Text before a system message.");
  custom("system_suffix", &ChatSection::system_suffix, "Text after a system message.");
  custom("user_prefix", &ChatSection::user_prefix, "Text before a user's message.");
  custom("user_suffix", &ChatSection::user_suffix, "Text after a user's message.");
  custom("assistant_prefix", &ChatSection::assistant_prefix, "Text before an assistant's message.");
  custom("assistant_suffix", &ChatSection::assistant_suffix,
         "Text after an assistant's message. It counts in the loss if the message does, except white space "
         "at its end.");
  custom("default_system", &ChatSection::default_system,
         "System message of a conversation that does not begin with one. Empty: none.");
  custom("system", &ChatSection::system,
         "Where a system message may be. turn: anywhere. user: only first; it is written inside the first "
         "user's turn, before its text. refuse: nowhere.");
  custom("alternate", &ChatSection::alternate,
         "Refuses conversations in which user and assistant do not take turns, starting with the user.");
  custom("trim", &ChatSection::trim, "Removes white space at both ends of each content.");
}

TableList data_source_tables() {
  const Access<std::vector<DataSource>> sources = [](JobConfig& j) -> std::vector<DataSource>& {
    return j.data.sources;
  };
  TableList list = make_table_list<DataSource>(
      "data.sources",
      "Training data mixed from several sources. Each sample comes from the source that is furthest below "
      "its weight. Each source has its own order and epochs, and is validated separately if it has "
      "validation data.",
      sources);
  list.decides_by_field = true;
  SectionFields<DataSource> source(
      list.fields, list.section, [sources](JobConfig& j) -> DataSource& { return sources(j).front(); },
      Effect::data);
  source("name", &DataSource::name, "Name in messages and metrics: letters, digits, '.', '_' and '-'.")
      .required();
  source("path", &DataSource::path, "As data.path.").path().required().needless("format", "random");
  source("weight", &DataSource::weight,
         "Fraction of samples from this source: weight / sum of weights. A sample is a row of train.seq_len "
         "tokens, or a whole document if data.packing or data.lengths keep documents whole.")
      .above_up_to(0, 1e9);
  add_files(source, /*has_conditions=*/false);
  source("val_fraction", &DataSource::val_fraction, "As data.val_fraction.").from_up_to(0, 1);
  source("val_path", &DataSource::val_path, "As data.val_path.").path().decides(Effect::course);
  return list;
}

}  // namespace pptrain::config
