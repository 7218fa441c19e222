#include "oa/ml/training/loss_curve.h"

#include "oa/core/file.h"
#include "oa/ml/training/state_text.h"

namespace oa::ml::training {

void Curve::add(u64 step, f64 value) {
  if (buckets_.empty() || buckets_.back().count >= per_bucket_) {
    if (buckets_.size() == kMaxPoints) {
      for (size_t i = 0; i < kMaxPoints / 2; ++i) {
        const Bucket &a = buckets_[2 * i], &b = buckets_[2 * i + 1];
        buckets_[i] = {a.steps + b.steps, a.values + b.values, a.count + b.count};
      }
      buckets_.resize(kMaxPoints / 2);
      per_bucket_ *= 2;
    }
    buckets_.emplace_back();
  }
  Bucket& last = buckets_.back();
  last.steps += static_cast<f64>(step);
  last.values += value;
  last.count += 1;
}

std::vector<ChartPoint> Curve::points() const {
  std::vector<ChartPoint> out;
  for (const Bucket& b : buckets_) {
    const f64 n = static_cast<f64>(b.count);
    out.push_back({b.steps / n, b.values / n});
  }
  return out;
}

LossCurve::LossCurve(std::filesystem::path stem, f64 interval)
    : stem_(std::move(stem)), interval_(interval) {
  if (!(interval >= 0)) invalid("LossCurve", "interval, got {}, expected 0 or more", interval);
}

LossCurve& LossCurve::add_metric(const ValidationMetric& metric) {
  validated_.push_back({metric, metric.revision(), {}});
  return *this;
}

LossCurve& LossCurve::set_title(std::string title) {
  title_ = std::move(title);
  return *this;
}

Chart LossCurve::chart() const {
  Chart chart = {title_, "step", "loss", {}};
  chart.series.push_back({"train", train_.points(), false});
  for (const Validated& v : validated_) {
    chart.series.push_back({v.metric.name(), v.curve.points(), true});
  }
  return chart;
}

void LossCurve::take_metrics(u64 step) {
  for (Validated& v : validated_) {
    if (v.metric.revision() == v.seen) continue;
    v.seen = v.metric.revision();
    v.curve.add(step, v.metric.result());
  }
}

void LossCurve::write(const TrainingCallbackContext& context) {
  const f64 begin = context.now();
  const Chart picture = chart();
  const std::string svg = render_svg(picture);
  const auto path = [&](const char* ending) {
    std::filesystem::path p = stem_;
    return p += ending;
  };
  write_file(path(".svg"), {reinterpret_cast<const u8*>(svg.data()), svg.size()},
             Durability::Rename);
  write_file(path(".png"), render_png(picture), Durability::Rename);
  last_write_ = context.now();
  context.exclude_wall_time(std::max(0.0, last_write_ - begin));
}

TrainingControl LossCurve::on_train_begin(const TrainingCallbackContext& context) {
  last_write_ = context.now();
  return TrainingControl::Continue;
}

TrainingControl LossCurve::on_step_end(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  train_.add(s.step_count, *s.last_loss);
  take_metrics(s.step_count);
  if (!s.is_epoch_boundary && context.now() - last_write_ >= interval_) write(context);
  return TrainingControl::Continue;
}

TrainingControl LossCurve::on_epoch_end(const TrainingCallbackContext& context) {
  take_metrics(context.snapshot().step_count);
  write(context);
  return TrainingControl::Continue;
}

TrainingControl LossCurve::on_train_end(const TrainingCallbackContext& context) {
  return on_epoch_end(context);
}

std::string LossCurve::save_state() const {
  const auto curve_state = [](const Curve& curve) {
    nlohmann::json state = {{"per_bucket", curve.per_bucket_}};
    nlohmann::json &steps = state["steps"] = nlohmann::json::array(),
                   &values = state["values"] = nlohmann::json::array(),
                   &counts = state["counts"] = nlohmann::json::array();
    for (const Curve::Bucket& b : curve.buckets_) {
      steps.push_back(b.steps);
      values.push_back(to_state(b.values));
      counts.push_back(b.count);
    }
    return state;
  };
  nlohmann::json state = {{"train", curve_state(train_)}};
  nlohmann::json& others = state["validated"] = nlohmann::json::object();
  for (const Validated& v : validated_) others[v.metric.name()] = curve_state(v.curve);
  return state.dump();
}

void LossCurve::load_state(std::string_view text) {
  constexpr std::string_view kOp = "LossCurve";
  const auto curve_of = [&](const nlohmann::json& json) {
    const StateReader state(kOp, json);
    Curve curve;
    curve.per_bucket_ = std::max<u64>(1, state.natural("per_bucket"));
    const std::vector<f64> steps = state.numbers("steps"), values = state.numbers("values"),
                           counts = state.numbers("counts");
    if (steps.size() != values.size() || steps.size() != counts.size() ||
        steps.size() > Curve::kMaxPoints) {
      state.wrong("counts", "as many as steps and values, at most 1000");
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      if (!(counts[i] >= 1 && counts[i] < 0x1p63)) state.wrong("counts", "numbers of 1 or more");
      curve.buckets_.push_back({steps[i], values[i], static_cast<u64>(counts[i])});
    }
    return curve;
  };
  const StateReader state(kOp, text);
  const Curve train = curve_of(state.at("train"));
  const StateReader others(kOp, state.at("validated"));
  std::vector<Curve> curves;
  for (const Validated& v : validated_) {
    const char* name = v.metric.name().c_str();
    curves.push_back(others.has(name) ? curve_of(others.at(name)) : Curve());
  }
  train_ = train;
  for (size_t i = 0; i < validated_.size(); ++i) validated_[i].curve = curves[i];
}

}  // namespace oa::ml::training
