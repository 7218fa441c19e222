// Generation: continues token sequences with a model, one program per token.
//
//   Generation text(engine, transformer, 1, {.sample = {.temperature = 0.8}, .seed = 7});
//   u32 token = text.start(prompt)[0];
//   for (...) token = text.next()[0];
//
// What a token changes (keys and values, lengths, the token itself, the counter of the draws) is in
// device memory and moved on by the program, so a token is one submission and the read of B
// numbers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "oa/matrix/random.h"
#include "oa/ml/nn/transformer.h"

namespace oa::ml::nn {

struct GenerationOptions {
  oa::matrix::SampleOptions sample;
  u64 seed = 0;
  bool capture = true;  // false: records every token; the same bits
};

// Belongs to its engine's thread. The model is in evaluation mode while its steps are recorded, and
// its parameters may be trained in between.
class Generation {
 public:
  // `batch` sequences with a key/value cache: a token costs the same at every position. When a
  // row's context is full, its newer half is read again from position 0.
  Generation(Engine& engine, std::shared_ptr<Transformer> model, i64 batch,
             const GenerationOptions& options);
  // Of any model of tokens [B, context] whose logits [B context, V] depend on earlier tokens only:
  // runs the last `context` tokens each time, as in training.
  Generation(Engine& engine, std::shared_ptr<Module> model, i64 context, i64 batch,
             const GenerationOptions& options);
  Generation(Generation&&) noexcept;
  Generation& operator=(Generation&&) noexcept;
  ~Generation();  // waits for the device

  // Starts anew after one prompt per row, each of one token or more, of which the last `context`
  // count; draws the first token of each row. Draw n of row r is a function of (seed, n, r).
  // InvalidArgument: another number of prompts, an empty one. OutOfRange: no token of the model.
  std::vector<u32> start(std::span<const std::vector<u32>> prompts);
  std::vector<u32> start(const std::vector<u32>& prompt);  // of every row
  // One more token of each row. FailedPrecondition before start().
  std::vector<u32> next();

  i64 batch() const;
  i64 context_length() const;
  // The logits [B, V] that the latest tokens were drawn from. With capture, the next token replaces
  // their elements.
  const Matrix& logits() const;
  // The program that next() replays; invalid before the first one and without capture.
  const ExecutionPlan& plan() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace oa::ml::nn
