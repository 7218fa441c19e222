// Training and encoding of a byte-pair vocabulary of 4096 ids, on texts that scripts/bench_text.py
// makes; OA_BENCH_TEXTS is their folder.
#include <sys/resource.h>

#include "bench/harness.h"
#include "oa/core/error.h"
#include "oa/core/file.h"
#include "oa/ml/tokenizer/bpe.h"

using namespace oa;
using ml::tokenizer::BpeTokenizer;

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const char* folder = std::getenv("OA_BENCH_TEXTS");
  if (!folder) invalid("bench_tokenizer", "OA_BENCH_TEXTS is not set, expected a folder of texts");
  for (const char* name : {"4 MB", "100 MB"}) {
    const std::string train_case = std::string("train ") + name;
    const std::string encode_case = std::string("encode ") + name;
    if (!options.wants(train_case) && !options.wants(encode_case)) continue;
    const auto text = read_file(std::filesystem::path(folder) /
                                (std::string(name, std::string_view(name).find(' ')) + ".txt"));
    const double megabytes = static_cast<double>(text.size()) * 1e-6;

    BpeTokenizer tokenizer(4096);
    double start = bench::now();
    tokenizer.train(text, 4096);
    bench::report(train_case, "oa", megabytes / (bench::now() - start), "MB/s");

    start = bench::now();
    const auto ids = tokenizer.encode(text);
    bench::report(encode_case, "oa", megabytes / (bench::now() - start), "MB/s");
    if (options.round == 0) {
      rusage used{};
      getrusage(RUSAGE_SELF, &used);
      bench::note(fmt::format("oa: {} of {} bytes: {} ids, memory peak {} MB", name, text.size(),
                              ids.size(), used.ru_maxrss / 1024));
    }
  }
}
