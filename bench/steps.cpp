// One training step: forward, backward, AdamW. Milliseconds, the share of the machine's FMA peak,
// and the most memory that the process had.
#include <sys/resource.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/support/fma_peak.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/nn/recurrent.h"
#include "oa/ml/nn/transformer.h"
#include "oa/ml/optim/adam.h"

using namespace oa;

namespace {

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

struct Case {
  const char* name;
  i64 batch, context;
  // Floating-point operations of a step: 6 per weight of a product and row, and attention's.
  double operations;
  std::shared_ptr<ml::Module> (*make)(const Engine&);
};

constexpr double products(double rows, double weights) { return 6 * rows * weights; }

const Case kCases[] = {
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

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const char* threads = std::getenv("OA_THREADS");
  const double peak = bench::fma_peak(threads ? std::atoi(threads) : 2);
  if (options.round == 0) bench::note("FMA peak " + std::to_string(peak) + " GFLOP/s");
  Engine engine = Engine::open();
  for (const Case& c : kCases) {
    if (!options.wants(c.name)) continue;
    const auto model = c.make(engine);
    ml::AdamW optimizer(model->all_parameters(), 1e-3);
    std::vector<u32> in(static_cast<size_t>(c.batch * c.context)), out(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = static_cast<u32>(i * 7 % kVocab);
      out[i] = static_cast<u32>((i * 7 + 7) % kVocab);
    }
    const Matrix x = Matrix::from_slice<u32>(engine, {c.batch, c.context}, in);
    const Matrix y = Matrix::from_slice<u32>(engine, {c.batch * c.context}, out);
    Matrix loss;
    const double seconds = bench::seconds_per_call(
        [&](int calls) {
          for (int i = 0; i < calls; ++i) {
            optimizer.zero_grad();
            ml::GradientTape tape;
            loss = ml::loss::cross_entropy(model->forward(x), y);
            tape.backward(loss);
            optimizer.step();
            engine.flush();
          }
          engine.wait();
        },
        options.seconds * 10);
    if (!(loss.item() < 6)) {
      bench::note("the loss does not fall");
      return 1;
    }
    bench::report(c.name, "oa", seconds * 1e3, "ms");
    bench::report(std::string(c.name) + ", share of FMA peak", "oa",
                  100 * c.operations / seconds * 1e-9 / peak, "%/s");
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (options.wants("memory")) {
    bench::report("memory peak", "oa", static_cast<double>(usage.ru_maxrss) / 1024, "MiB");
  }
}
