// The question of a tier's user.
#include "python/tier_lookup.hpp"

#include <limits>
#include <string_view>
#include <utility>

#include "jobs/lookups.hpp"

namespace kvfs::python {

namespace {

// What a comparison or a search said: yes, no, or an exception.
bool checked(int answer) {
  if (answer < 0) nb::raise_python_error();
  return answer != 0;
}

nb::object interned(const char* name) {
  nb::object text = nb::steal(PyUnicode_InternFromString(name));
  if (!text.is_valid()) nb::raise_python_error();
  return text;
}

}  // namespace

TierLookup::TierLookup(nb::object engine, nb::object notes, nb::object miss, nb::object hit, nb::object retry)
    : engine_object_(std::move(engine)),
      engine_(nb::cast<BoundEngine&>(engine_object_)),
      notes_(std::move(notes)),
      miss_(std::move(miss)),
      hit_(std::move(hit)),
      retry_(std::move(retry)),
      req_id_(interned("req_id")),
      request_id_(interned("request_id")),
      waiting_since_s_(std::numeric_limits<double>::infinity()) {}

nb::object TierLookup::answer(const nb::bytes& key, nb::handle context) {
  const nb::object request_id = nb::getattr(context, req_id_);
  const nb::object asking = nb::getattr(notes_, request_id_);
  // The same object all along, as a rule.
  if (checked(PyObject_RichCompareBool(request_id.ptr(), asking.ptr(), Py_NE))) begin(request_id);
  if (denied_.is_valid()) {
    const nb::object denied = denied_;  // lives on if the search comes back here
    if (checked(PySequence_Contains(denied.ptr(), key.ptr()))) return miss_;
  }
  const std::string_view text(key.c_str(), key.size());
  if (!first_asked_.empty() && text != first_asked_) {
    engine_.ask_unseen(key);
    return retry_;
  }
  first_asked_.clear();
  const jobs::Answer answer = engine_.ask(key, waiting_since_s_);
  if (answer.verdict == jobs::Verdict::kHit) return hit_;
  if (answer.verdict == jobs::Verdict::kMiss) {
    notes_.attr("missed")();
    return miss_;
  }
  if (answer.asked) first_asked_ = text;
  if (!std::exchange(must_wait_, true)) notes_.attr("must_wait") = true;
  return retry_;
}

void TierLookup::begin(const nb::object& request_id) {
  notes_.attr("begin")(request_id);
  waiting_since_s_ = nb::cast<double>(notes_.attr("waiting_since_s"));
  nb::object denied = notes_.attr("denied");
  denied_ = checked(PyObject_IsTrue(denied.ptr())) ? std::move(denied) : nb::object();
  must_wait_ = false;
  first_asked_.clear();
}

}  // namespace kvfs::python
