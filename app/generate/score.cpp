#include "app/generate/score.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <span>
#include <utility>

#include "app/generate/generator.h"
#include "core/base/error.h"

namespace pptrain::app {

namespace {

using at::Tensor;

// The tokens that are read: all but the last.
std::vector<int64_t> read_tokens(const Continuation& continuation) {
  std::vector<int64_t> tokens = continuation.prompt;
  tokens.insert(tokens.end(), continuation.completion.begin(), continuation.completion.end());
  tokens.pop_back();
  return tokens;
}

// logits: float32 [completion, vocab].
Score score_of(std::vector<int64_t> completion, const Tensor& logits) {
  const auto count = static_cast<int64_t>(completion.size());
  const Tensor ids = at::from_blob(completion.data(), {count}, at::TensorOptions(at::kLong));
  const Tensor exact = logits.to(at::kDouble);
  const Tensor chosen = exact.gather(1, ids.unsqueeze(1)).squeeze(1);
  return {.log_probability = chosen.sub(exact.logsumexp(1)).sum().item<double>(),
          .greedy = logits.argmax(1).equal(ids)};
}

GenerateOptions reading(int64_t in_flight, GenerateOptions::Reader read) {
  GenerateOptions options{
      .sampling = {}, .stop = {.max_tokens = 1, .ids = {}, .texts = {}}, .in_flight = in_flight};
  options.read = std::move(read);
  return options;
}

int last_rank(const RunContext& context) {
  const schedule::Schedule& placement = context.plan.schedule;
  return placement.rank_of(placement.stages() - 1);
}

}  // namespace

void check_continuations(const models::ModelConfig& model, const std::vector<Continuation>& continuations) {
  for (size_t i = 0; i < continuations.size(); ++i) {
    const auto& [prompt, completion] = continuations[i];
    const auto number = static_cast<int64_t>(i);
    if (prompt.empty() || completion.empty()) {
      Generator::check(model, prompt, number, 1);
    } else {
      Generator::check(model, read_tokens(continuations[i]), number, 1);
      Generator::check(model, std::span(completion).last(1), number, 1);
    }
  }
}

std::vector<Score> score(RunContext& context, RankModel& model,
                         const std::vector<Continuation>& continuations, int64_t in_flight) {
  check_continuations(context.model, continuations);
  std::vector<double> flat(2 * continuations.size(), 0);  // log-probability and greedy (1) of each
  const auto read = [&](const Sequence& sequence, const Tensor& logits) {
    const auto number = static_cast<size_t>(sequence.number());
    const Score found = score_of(continuations[number].completion, logits);
    flat[2 * number] = found.log_probability;
    flat[2 * number + 1] = found.greedy ? 1 : 0;
  };
  const GenerateOptions options = reading(in_flight, read);
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < continuations.size(); ++i) {
    const Continuation& continuation = continuations[i];
    if (continuation.completion.empty()) continue;
    Sequence& sequence =
        sequences.emplace_back(read_tokens(continuation), static_cast<int64_t>(i), options.stop, nullptr);
    sequence.first_logits = static_cast<int64_t>(continuation.prompt.size()) - 1;
  }
  Generator(context, model, options).run(sequences);
  comm::broadcast(context.mesh.along(mesh::Axis::pp).host(), flat, last_rank(context));
  std::vector<Score> scores;
  for (size_t i = 0; i < continuations.size(); ++i) {
    if (continuations[i].completion.empty()) {
      scores.emplace_back();
    } else {
      scores.push_back({.log_probability = flat[2 * i], .greedy = flat[2 * i + 1] == 1});
    }
  }
  return scores;
}

Tensor logits_of(RunContext& context, RankModel& model, const std::vector<int64_t>& ids) {
  Tensor all = at::zeros({static_cast<int64_t>(ids.size()), context.model.vocab});
  const GenerateOptions options =
      reading(1, [&](const Sequence&, const Tensor& logits) { all.copy_(logits); });
  std::vector<Sequence> sequences;
  sequences.emplace_back(ids, 0, options.stop, nullptr).first_logits = 0;
  Generator(context, model, options).run(sequences);
  context.mesh.along(mesh::Axis::pp).host().broadcast(all, last_rank(context));
  return all;
}

}  // namespace pptrain::app
