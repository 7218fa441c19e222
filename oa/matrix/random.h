// Random values. Each is a function of (seed, stream, step, element) only: never of scheduling, of
// the device or of what else is drawn.
//
// Element i (its row-major position) takes word i % 4 of the Philox4x32-10 block with key
// (seed low, seed high) and counter (i / 4, stream, step low, step high); oa/core/random.h computes
// the same on the host. At most 2^34 elements.
#pragma once

#include <concepts>
#include <optional>

#include "oa/matrix/matrix.h"

namespace oa::matrix {

// What a draw is a function of, besides the element.
struct RandomSource {
  RandomSource() = default;
  template <std::integral T>
  RandomSource(T s) : seed(static_cast<u64>(s)) {}  // NOLINT
  RandomSource(std::optional<u64> s) : seed(s) {}   // NOLINT
  RandomSource(u64 s, u32 stream_id) : seed(s), stream(stream_id) {}
  RandomSource(u64 s, Matrix step_counter, u32 stream_id = 0)
      : seed(s), stream(stream_id), step(std::move(step_counter)) {}

  // Empty: the next seed of the engine's stream. 0 is a seed like any other. A program that is
  // replayed needs a seed of its own and a step, or every replay would draw the same numbers;
  // capturing a draw without a seed is an error.
  std::optional<u64> seed;
  u32 stream = 0;  // tells apart draws that share a seed
  // U32 [1], or [2] (low word, high word), in device memory: the program reads it at every run and
  // moves it on with advance(). Empty: step 0.
  Matrix step;
};

// Uniform in [low, high), F32, on a grid of 2^24 values; low < high, both finite.
Matrix philox_uniform(const Matrix& shape_of, f64 low, f64 high, const RandomSource& source);
Matrix uniform(const Engine& engine, const Shape& shape, f64 low = 0, f64 high = 1,
               const RandomSource& source = {});
// Normal by Box and Muller, F32, always finite; stddev >= 0.
Matrix philox_normal(const Matrix& shape_of, f64 mean, f64 stddev, const RandomSource& source);
Matrix normal(const Engine& engine, const Shape& shape, f64 mean = 0, f64 stddev = 1,
              const RandomSource& source = {});

// x / (1 - p) where the element's uniform value is p or more, else 0; floats. p in [0, 1]: 0 gives
// x itself and draws nothing, 1 gives zeros. Drawing again with the same source gives the same
// mask.
Matrix dropout(const Matrix& x, f64 p, const RandomSource& source);

struct SampleOptions {
  f64 temperature = 1;  // 0 or less: the first maximum, nothing is drawn
  i64 top_k = 0;        // above 0: only the top_k greatest
  f64 top_p = 1;        // below 1: only the shortest prefix, greatest first, with this share of the
                        // probability, the crossing class included; clamped to 1e-7 .. 1
};
// logits [V] or [R, V] -> I32 [R] classes drawn with probabilities softmax(logits / temperature). A
// class of probability 0 is never drawn. Row r takes the uniform value of element r. A row with NaN
// gives the position of its first NaN.
Matrix sample_logits(const Matrix& logits, const SampleOptions& options,
                     const RandomSource& source);
// The same from given numbers u F32 [R] in [0, 1).
Matrix sample_logits_at(const Matrix& logits, const Matrix& u, const SampleOptions& options);

// Adds 1 to a step counter in place, in the order of recorded work.
void advance(const Matrix& step);

}  // namespace oa::matrix
