#include "bench/support/step_cases.h"

#include "oa/ml/nn/recurrent.h"
#include "oa/ml/nn/transformer.h"

namespace bench {
namespace {

using namespace oa;

constexpr u64 kSeed = 20260714;
constexpr i64 kVocab = 256;

// Embedding, one recurrent layer, head.
class Recurrent final : public ml::Module {
 public:
  Recurrent(const Engine& e, const char* name, i64 width, i64 hidden,
            std::shared_ptr<ml::Module> layer)
      : embed_(registry().register_module("embed",
                                          ml::nn::Embedding::with_seed(e, kVocab, width, kSeed))),
        layer_(registry().register_module(name, std::move(layer))),
        head_(registry().register_module("head",
                                         ml::nn::Linear::with_seed(e, hidden, kVocab, kSeed + 2))),
        hidden_(hidden) {}
  Matrix forward(const Matrix& tokens) override {
    return head_->forward(layer_->forward(embed_->forward(tokens)).reshape({-1, hidden_}));
  }

 private:
  std::shared_ptr<ml::nn::Embedding> embed_;
  std::shared_ptr<ml::Module> layer_;
  std::shared_ptr<ml::nn::Linear> head_;
  i64 hidden_;
};

constexpr double products(double rows, double weights) { return 6 * rows * weights; }

const StepCase kCases[] = {
    {"tiny transformer", 64, 16,
     products(1024, 4 * 32 * 32 + 2 * 32 * 64 + 32 * 256) + 64 * 12.0 * 16 * 16 * 32 / 2,
     [](const Engine& e) -> std::shared_ptr<ml::Module> {
       return ml::nn::Transformer::with_seed(e, kVocab, 16, 32, 64, 1, 1, 1e-5, kSeed);
     }},
    {"tiny rnn", 64, 16, products(1024, 32 * 64 + 64 * 64 + 64 * 256),
     [](const Engine& e) -> std::shared_ptr<ml::Module> {
       return std::make_shared<Recurrent>(e, "rnn", 32, 64,
                                          ml::nn::Rnn::with_seed(e, 32, 64, 1, kSeed + 1));
     }},
    {"tiny gru", 64, 16, products(1024, 3 * 32 * 64 + 3 * 64 * 64 + 64 * 256),
     [](const Engine& e) -> std::shared_ptr<ml::Module> {
       return std::make_shared<Recurrent>(e, "gru", 32, 64,
                                          ml::nn::Gru::with_seed(e, 32, 64, 1, true, kSeed + 1));
     }},
    {"transformer 4x128", 16, 128,
     products(2048, 4 * (4 * 128 * 128 + 2 * 128 * 512) + 128 * 256) +
         4 * 64 * 12.0 * 128 * 128 * 32 / 2,
     [](const Engine& e) -> std::shared_ptr<ml::Module> {
       return ml::nn::Transformer::with_seed(e, kVocab, 128, 128, 512, 4, 4, 1e-5, kSeed);
     }},
};

std::vector<u32> sequence(i64 count, u32 first) {
  std::vector<u32> s(static_cast<size_t>(count));
  for (size_t i = 0; i < s.size(); ++i) s[i] = static_cast<u32>((i * 7 + first) % kVocab);
  return s;
}

}  // namespace

std::vector<u32> StepCase::tokens() const { return sequence(batch * context, 0); }
std::vector<u32> StepCase::targets() const { return sequence(batch * context, 7); }

std::span<const StepCase> step_cases() { return kCases; }

StepCase large_step_case() {
  return {"transformer 6x384", 64, 256,
          products(16384, 6 * (4 * 384 * 384 + 2 * 384 * 1536) + 384 * 256) +
              6 * 64 * 12.0 * 256 * 256 * 384 / 2,
          [](const Engine& e) -> std::shared_ptr<ml::Module> {
            return ml::nn::Transformer::with_seed(e, kVocab, 256, 384, 1536, 6, 6, 1e-5, kSeed);
          }};
}

}  // namespace bench
