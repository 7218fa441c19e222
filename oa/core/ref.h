// A reference-counted pointer without atomics, for objects that stay on their engine's thread.
#pragma once

#include <utility>

#include "oa/core/types.h"

namespace oa {

// Base of objects held by Ref. Copying an object does not copy its count.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) {}
  RefCounted& operator=(const RefCounted&) { return *this; }
  u32 ref_count() const { return refs_; }

 protected:
  ~RefCounted() = default;

 private:
  template <class T>
  friend class Ref;
  mutable u32 refs_ = 0;
};

template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  explicit Ref(T* p) : p_(p) { retain(); }
  Ref(const Ref& other) : p_(other.p_) { retain(); }
  Ref(Ref&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(p_, other.p_);
    return *this;
  }
  ~Ref() {
    if (p_ && --p_->refs_ == 0) delete p_;
  }

  T* get() const { return p_; }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  bool operator==(const Ref& other) const { return p_ == other.p_; }

 private:
  void retain() const {
    if (p_) ++p_->refs_;
  }
  T* p_ = nullptr;
};

}  // namespace oa
