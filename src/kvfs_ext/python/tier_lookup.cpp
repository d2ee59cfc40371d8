// The question of a tier's user.
#include "python/tier_lookup.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <string_view>
#include <utility>

#include "jobs/lookups.hpp"
#include "python/module.hpp"

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

// What `use` of `self` returns, or nothing with its exception set.
template <typename Use>
PyObject* called(PyObject* self, const Use& use) {
  try {
    return use(*nb::inst_ptr<TierLookup>(nb::handle(self))).release().ptr();
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

PyObject* call_answer(PyObject* self, PyObject* const* arguments, Py_ssize_t positional, PyObject* names) {
  PyObject* taken[2] = {};
  if (!take_arguments(arguments, positional, names, taken)) return nullptr;
  return called(self, [&](TierLookup& lookup) { return lookup.answer(taken[0], taken[1]); });
}

PyObject* call_end_step(PyObject* self, PyObject* const* /*arguments*/, Py_ssize_t count) {
  if (count > 1) return PyErr_Format(PyExc_TypeError, "end_step takes one argument at most, got %zd", count);
  return called(self, [](TierLookup& lookup) {
    lookup.end_step();
    return nb::none();
  });
}

template <typename Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef answer_definition = {"ask", as_method(call_answer), METH_FASTCALL | METH_KEYWORDS,
                                 "Answer whether a key is there, for a request."};
PyMethodDef end_step_definition = {"end_step", as_method(call_end_step), METH_FASTCALL,
                                   "Hand the step's questions to the threads."};

nb::object made(PyMethodDef& definition, nb::handle self) {
  nb::object function = nb::steal(PyCFunction_New(&definition, self.ptr()));
  if (!function.is_valid()) nb::raise_python_error();
  return function;
}

nb::object interned(const char* name) {
  nb::object text = nb::steal(PyUnicode_InternFromString(name));
  if (!text.is_valid()) nb::raise_python_error();
  return text;
}

std::string name_of(nb::handle request_id) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(request_id.ptr(), &size);
  if (text == nullptr) nb::raise_python_error();
  return {text, static_cast<std::size_t>(size)};
}

// As time.monotonic().
double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr double kNever = std::numeric_limits<double>::infinity();
// The questions of one request in one step take less than this.
constexpr double kStepS = 0.05;
// Keys that are looked up together, at first and then: the first may well be a miss, and the others in vain.
constexpr std::size_t kAheadAtFirst = 4;
constexpr std::size_t kAhead = 32;

}  // namespace

TierLookup::TierLookup(nb::object engine, nb::object miss, nb::object hit, nb::object retry)
    : engine_object_(std::move(engine)),
      engine_(nb::cast<BoundEngine&>(engine_object_)),
      miss_(std::move(miss)),
      hit_(std::move(hit)),
      retry_(std::move(retry)),
      req_id_(interned("req_id")),
      keys_name_(interned("_offload_key_positions")) {}

nb::object TierLookup::answer(nb::handle key, nb::handle context) {
  if (!PyBytes_Check(key.ptr())) throw nb::type_error("key must be bytes");
  const std::string_view text(PyBytes_AS_STRING(key.ptr()),
                              static_cast<std::size_t>(PyBytes_GET_SIZE(key.ptr())));
  if (first_asked_.empty() && confirmed_ == PyList_GET_SIZE(hits_.ptr())) engine_.prefetch(text);
  if (!context.is(context_)) look_at(context);
  if (denied_now_.is_valid()) {
    const nb::object denied = denied_now_;  // lives on if the search comes back here
    if (checked(PySet_Contains(denied.ptr(), key.ptr()))) return miss_;
  }
  if (ahead_ > 0 && confirmed_ == PyList_GET_SIZE(hits_.ptr())) look_ahead(key);
  if (remembered(key)) return hit_;
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
    missed();
    return miss_;
  }
  if (answer.asked) first_asked_ = text;
  must_wait_ = true;
  ahead_ = 0;
  return retry_;
}

void TierLookup::end_step() {
  end();
  engine_.submit_probes();
}

void TierLookup::deny(nb::handle keys, nb::handle request_id) {
  end();
  nb::set& denied = denied_.try_emplace(name_of(request_id)).first->second;
  for (const nb::handle key : nb::borrow<nb::iterable>(keys)) denied.add(key);
}

void TierLookup::forget(nb::handle request_id) {
  end();
  const std::string name = name_of(request_id);
  // They let go of Python objects when nothing is half done any more.
  const auto waiting = waiting_.extract(name);
  const auto denied = denied_.extract(name);
}

void TierLookup::look_at(nb::handle context) {
  nb::object request_id = nb::getattr(context, req_id_);
  if (!asking_.is_valid() || checked(PyObject_RichCompareBool(request_id.ptr(), asking_.ptr(), Py_NE)))
    begin(std::move(request_id));
  context_ = nb::borrow(context);
}

void TierLookup::begin(nb::object request_id) {
  end();
  name_ = name_of(request_id);
  asking_ = std::move(request_id);
  began_s_ = now_s();
  ahead_ = kAheadAtFirst;
  next_ = 0;
  const auto denied = denied_.find(name_);
  if (denied != denied_.end()) denied_now_ = denied->second;
  losses_ = engine_.losses();
  const auto waiting = waiting_.find(name_);
  if (waiting == waiting_.end()) return;
  waiting_since_s_ = waiting->second.since_s;
  next_ = waiting->second.next;
  if (waiting->second.losses == losses_) hits_ = waiting->second.hits;
}

void TierLookup::end() {
  if (!asking_.is_valid()) return;
  const nb::object asked = std::exchange(asking_, {});
  const nb::object context = std::exchange(context_, {});
  const nb::object denied = std::exchange(denied_now_, {});
  nb::list hits = std::exchange(hits_, {});
  const nb::object keys = std::exchange(keys_, {});
  const bool waits = std::exchange(must_wait_, false);
  waiting_since_s_ = kNever;
  confirmed_ = 0;
  first_asked_.clear();
  if (waits) {
    Waiting before = std::exchange(waiting_[name_], {began_s_, std::move(hits), losses_, next_});
  } else if (!waiting_.empty()) {
    const auto before = waiting_.extract(name_);
  }
}

void TierLookup::missed() {
  if (now_s() - began_s_ > kStepS) end();
}

bool TierLookup::remembered(nb::handle key) {
  PyObject* const hits = hits_.ptr();
  if (confirmed_ == PyList_GET_SIZE(hits)) return false;
  if (engine_.losses() == losses_ && same_key(PyList_GET_ITEM(hits, confirmed_), key.ptr())) {
    ++confirmed_;
    return true;
  }
  if (PyList_SetSlice(hits, confirmed_, PyList_GET_SIZE(hits), nullptr) != 0) nb::raise_python_error();
  ahead_ = 0;
  return false;
}

void TierLookup::look_ahead(nb::handle key) {
  // It is of use once more if all that follows goes well.
  const std::size_t wanted = std::exchange(ahead_, 0);
  const Py_ssize_t size = PyBytes_GET_SIZE(key.ptr());
  if (!is_key_size(static_cast<std::size_t>(size)) || engine_.losses() != losses_ || !find_in_keys(key))
    return;
  std::array<PyObject*, kAhead> keys{};
  std::array<Py_ssize_t, kAhead + 1> places{next_};
  std::size_t count = 0;
  packed_.clear();
  for (PyObject* value = nullptr; count < wanted; ++count) {
    places[count + 1] = places[count];
    PyObject*& next = keys[count];
    if (PyDict_Next(keys_.ptr(), &places[count + 1], &next, &value) == 0) break;
    if (!PyBytes_Check(next) || PyBytes_GET_SIZE(next) != size) break;
    packed_.append(PyBytes_AS_STRING(next), static_cast<std::size_t>(size));
  }
  const std::size_t present = engine_.present_prefix(packed_, static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < present; ++i) hits_.append(nb::handle(keys[i]));
  next_ = places[present];
  if (present == wanted) ahead_ = kAhead;
}

bool TierLookup::find_in_keys(nb::handle key) {
  if (!keys_.is_valid()) {
    keys_ = nb::steal(PyObject_GetAttr(context_.ptr(), keys_name_.ptr()));
    if (!keys_.is_valid()) {
      if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) nb::raise_python_error();
      PyErr_Clear();
      return false;
    }
  }
  if (!PyDict_Check(keys_.ptr())) return false;
  PyObject* found = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t after = next_;
  if (PyDict_Next(keys_.ptr(), &after, &found, &value) != 0 && found == key.ptr()) return true;
  next_ = after = 0;
  for (; PyDict_Next(keys_.ptr(), &after, &found, &value) != 0; next_ = after) {
    if (found == key.ptr()) return true;
  }
  return false;
}

nb::object TierLookup::answer_function(nb::handle self) { return made(answer_definition, self); }

nb::object TierLookup::end_step_function(nb::handle self) { return made(end_step_definition, self); }

void bind_tier_lookup(nb::module_& module) {
  nb::class_<TierLookup>(module, "TierLookup",
                         R"(The lookups of a tier: Engine.ask() for its requests, and what is noted of those.

Made by Engine.tier_lookup(). No call blocks, and one thread may call at a time.)")
      .def_prop_ro(
          "ask", [](nb::handle_t<TierLookup> self) { return TierLookup::answer_function(self); },
          nb::sig("def ask(self) -> collections.abc.Callable[[bytes, typing.Any], typing.Any]"),
          R"(A function ``(key, req_context)`` that answers for the request ``req_context.req_id``.

It answers with the objects that stand for a miss, a hit and a question, and raises what Engine.ask() raises.
Once a request has had to ask, its other keys of that step are asked about without a look: it waits in any
case.)")
      .def_prop_ro(
          "end_step", [](nb::handle_t<TierLookup> self) { return TierLookup::end_step_function(self); },
          nb::sig("def end_step(self) -> collections.abc.Callable[..., None]"),
          R"(A function that hands the step's questions to the threads.

Whoever was told to wait waits for their answers. It takes the step's context, or none, and does not look at
it.)")
      .def("deny", &TierLookup::deny, nb::arg("keys"), nb::arg("request_id"),
           nb::sig("def deny(self, keys: collections.abc.Iterable[bytes], request_id: str) -> None"),
           "Make keys a miss for a request as long as it lives, whatever is known of them.")
      .def("forget", &TierLookup::forget, nb::arg("request_id"),
           nb::sig("def forget(self, request_id: str) -> None"), "Drop what was noted of a request.")
      .def("__bool__", &TierLookup::has_notes, "Tell whether anything is noted of any request.");
}

}  // namespace kvfs::python
