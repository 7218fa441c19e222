// `oa explain lm`: what becomes of a language model's training step, or of its forward pass: groups
// and what kept others out, chosen kernels, memory, barriers, and the time of every dispatch beside
// what the machine could do.
#include "oa/engine/explain.h"

#include <fmt/format.h>

#include "apps/oa/commands.h"
#include "apps/oa/lm/options.h"
#include "apps/oa/lm/trainer.h"
#include "oa/core/file.h"
#include "oa/engine/profile_table.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/optim/clip.h"
#include "oa/ml/training/training_program.h"

namespace oa::command {
namespace {

struct Options {
  LmModelConfig model;
  LmTrainConfig train;
  std::string file;  // a model's file; empty: as the options say
  std::string device;
  std::string profile, report;
  bool forward = false;
  bool json = false;
  u32 runs = 10;
};

Matrix tokens(const Engine& engine, const Shape& shape, i64 vocab) {
  std::vector<u32> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<u32>(i * 7 % static_cast<size_t>(vocab));
  return Matrix::from_slice<u32>(engine, shape, values);
}

void write_text(const std::string& path, const std::string& text) {
  write_file(path, {reinterpret_cast<const u8*>(text.data()), text.size()});
}

void show(Engine& engine, const ExecutionPlan& plan, const Options& o) {
  const Explanation e = explain(engine, plan, {.runs = o.runs});
  fmt::print("{}", o.json ? to_json(e) : to_text(e));
  if (!o.report.empty()) {
    write_text(o.report + ".semantic.json", plan.semantic_report_json("lm"));
    write_text(o.report + ".execution.json", plan.execution_report_json("lm"));
    write_text(o.report + ".compilation.json", plan.compilation_report_json("lm"));
  }
  if (o.profile.empty()) return;
  engine.write_trace(o.profile);
  if (!o.json) fmt::print("\nprofile of all runs\n{}", engine.profile_table());
}

void run(const Options& o) {
  Engine engine = Engine::open({.device = o.device, .profile = !o.profile.empty()});
  LmModelConfig config = o.model;
  if (!o.file.empty()) config = read_lm_file(o.file).model;
  check(config, o.train);
  const LanguageModel model = LanguageModel::create(engine, config);
  if (!o.file.empty()) ml::load_model(engine, o.file, *model.module);
  const Matrix x = tokens(engine, {o.train.batch, config.context}, config.vocab);
  if (o.forward) {
    const ml::NoGrad quiet;
    const ml::ScopedEval eval = model.module->scoped_eval();
    return show(engine, engine.capture([&] { return std::vector{model.module->forward(x)}; }), o);
  }
  const Matrix y = tokens(engine, {o.train.batch * config.context}, config.vocab);
  const std::vector<ml::Parameter> parameters = model.module->all_parameters();
  const auto optimizer = make_optimizer(o.train, parameters);
  const auto program = ml::TrainingProgram::capture(engine, *optimizer, [&] {
    ml::GradientTape tape;
    const Matrix loss = ml::loss::cross_entropy(model.module->forward(x), y);
    tape.backward(loss);
    const Matrix guard = o.train.clip > 0 ? ml::clip_grad_norm(parameters, o.train.clip) : loss;
    return ml::training::StepRecord(loss, guard);
  });
  show(engine, program.plan(), o);
}

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  CLI::App* explain = app.add_subcommand("explain", "What a program compiles to, and why");
  explain->require_subcommand(1);
  CLI::App* lm = explain->add_subcommand("lm", "The training step of a language model");
  auto o = std::make_shared<Options>();
  declare(*lm, o->model);
  lm->add_option("--file", o->file, "A model's file, in place of the options of a model");
  lm->add_flag("--forward", o->forward, "The forward pass alone, as in evaluation");
  lm->add_option("--batch", o->train.batch, "Windows a step")->capture_default_str();
  lm->add_option("--optimizer", o->train.optimizer, "sgd, adam, adamw or muon")
      ->capture_default_str();
  lm->add_option("--clip", o->train.clip, "Greatest norm of the gradients; 0: none")
      ->capture_default_str();
  lm->add_option("--runs", o->runs, "Timed runs; 0: only compile")->capture_default_str();
  lm->add_flag("--json", o->json, "Print JSON");
  lm->add_option(
      "--report", o->report,
      "Write the program's graphs and records to PATH.semantic.json, .execution.json and "
      ".compilation.json");
  lm->add_option("--profile", o->profile,
                 "Write a trace for chrome://tracing to this file, and print times by kernel");
  lm->add_option("--device", o->device, "cpu, vulkan, vulkan:N or lavapipe; default: the best");
  lm->callback([o, &action] { action = [o] { run(*o); }; });
}

}  // namespace oa::command
