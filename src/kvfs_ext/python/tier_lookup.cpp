// The question of a tier's user.
#include "python/tier_lookup.hpp"

#include <cstring>
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

// vLLM keeps the keys of a request, so that it is the same object, as a rule.
bool same_key(PyObject* one, PyObject* other) {
  if (one == other) return true;
  return PyBytes_Check(one) && PyBytes_GET_SIZE(one) == PyBytes_GET_SIZE(other) &&
         std::memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other),
                     static_cast<std::size_t>(PyBytes_GET_SIZE(one))) == 0;
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

// What wait() left, if no hit was lost since.
nb::list hits_of(const nb::object& memory, std::uint64_t losses) {
  if (!nb::isinstance<nb::tuple>(memory) || nb::len(memory) != 2) return nb::list();
  return nb::cast<std::uint64_t>(memory[0]) == losses ? nb::cast<nb::list>(memory[1]) : nb::list();
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
      memory_(interned("memory")),
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
  if (remembered(key)) return hit_;
  const std::string_view text(PyBytes_AS_STRING(key.ptr()),
                              static_cast<std::size_t>(PyBytes_GET_SIZE(key.ptr())));
  if (!first_asked_.empty() && text != first_asked_) {
    engine_.ask_unseen(text);
    return retry_;
  }
  first_asked_.clear();
  const jobs::Answer answer = engine_.ask(text, waiting_since_s_);
  if (answer.verdict == jobs::Verdict::kHit) {
    hits_.append(key);
    ++confirmed_;
    return hit_;
  }
  if (answer.verdict == jobs::Verdict::kMiss) {
    notes_.attr("missed")();
    return miss_;
  }
  if (answer.asked) first_asked_ = text;
  if (!std::exchange(must_wait_, true)) wait();
  return retry_;
}

bool TierLookup::remembered(nb::handle key) {
  PyObject* const hits = hits_.ptr();
  if (confirmed_ == PyList_GET_SIZE(hits)) return false;
  if (engine_.losses() == losses_ && same_key(PyList_GET_ITEM(hits, confirmed_), key.ptr())) {
    ++confirmed_;
    return true;
  }
  if (PyList_SetSlice(hits, confirmed_, PyList_GET_SIZE(hits), nullptr) != 0) nb::raise_python_error();
  return false;
}

void TierLookup::wait() {
  notes_.attr("must_wait") = true;
  notes_.attr(memory_) = nb::make_tuple(losses_, hits_);
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
  losses_ = engine_.losses();
  confirmed_ = 0;
  hits_ = hits_of(notes_.attr(memory_), losses_);
}

}  // namespace kvfs::python
