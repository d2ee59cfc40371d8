// The question of a tier's user.
#include "python/tier_lookup.hpp"

#include <exception>
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

constexpr const char* kCapsuleName = "kvfs_ext.TierLookup";

// Both arguments, by position or by name; false with an exception set where they are others.
bool take_arguments(PyObject* const* arguments, Py_ssize_t positional, PyObject* names, PyObject** taken) {
  constexpr const char* kNames[] = {"key", "req_context"};
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < positional && i < 2; ++i) taken[i] = arguments[i];
  for (Py_ssize_t i = 0; i < named; ++i) {
    for (int j = 0; j < 2; ++j) {
      if (taken[j] == nullptr && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), kNames[j]) == 0)
        taken[j] = arguments[positional + i];
    }
  }
  if (positional + named == 2 && taken[0] != nullptr && taken[1] != nullptr) return true;
  PyErr_SetString(PyExc_TypeError, "the lookup takes two arguments, key and req_context");
  return false;
}

PyObject* call(PyObject* capsule, PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  PyObject* taken[2] = {};
  if (!take_arguments(arguments, positional, names, taken)) return nullptr;
  auto& lookup = *static_cast<TierLookup*>(PyCapsule_GetPointer(capsule, kCapsuleName));
  try {
    return lookup.answer(taken[0], taken[1]).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const nb::builtin_exception& error) {
    PyErr_SetString(error.type() == nb::exception_type::value_error ? PyExc_ValueError : PyExc_TypeError,
                    error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef definition = {"lookup", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)),
                          METH_FASTCALL | METH_KEYWORDS, "Answer whether a key is there, for a request."};

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

nb::object TierLookup::answer(nb::handle key, nb::handle context) {
  if (!PyBytes_Check(key.ptr())) throw nb::type_error("key must be bytes");
  const nb::object request_id = nb::getattr(context, req_id_);
  const nb::object asking = nb::getattr(notes_, request_id_);
  // The same object all along, as a rule.
  if (checked(PyObject_RichCompareBool(request_id.ptr(), asking.ptr(), Py_NE))) begin(request_id);
  if (denied_.is_valid()) {
    const nb::object denied = denied_;  // lives on if the search comes back here
    if (checked(PySequence_Contains(denied.ptr(), key.ptr()))) return miss_;
  }
  const std::string_view text(PyBytes_AS_STRING(key.ptr()),
                              static_cast<std::size_t>(PyBytes_GET_SIZE(key.ptr())));
  if (!first_asked_.empty() && text != first_asked_) {
    engine_.ask_unseen(text);
    return retry_;
  }
  first_asked_.clear();
  const jobs::Answer answer = engine_.ask(text, waiting_since_s_);
  if (answer.verdict == jobs::Verdict::kHit) return hit_;
  if (answer.verdict == jobs::Verdict::kMiss) {
    notes_.attr("missed")();
    return miss_;
  }
  if (answer.asked) first_asked_ = text;
  if (!std::exchange(must_wait_, true)) notes_.attr("must_wait") = true;
  return retry_;
}

nb::object TierLookup::function(std::unique_ptr<TierLookup> lookup) {
  const nb::capsule capsule(lookup.release(), kCapsuleName,
                            [](void* pointer) noexcept { delete static_cast<TierLookup*>(pointer); });
  nb::object made = nb::steal(PyCFunction_New(&definition, capsule.ptr()));
  if (!made.is_valid()) nb::raise_python_error();
  return made;
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
