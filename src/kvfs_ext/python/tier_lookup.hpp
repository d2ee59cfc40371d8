// The question of a tier's user, "is this key there, for this request?", answered without Python code.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "python/bound_engine.hpp"

namespace kvfs::python {

// Asks the engine, and knows of the request that is asking what a request's notes (kvfs.jobs.NotesLike) say;
// they are asked when another request asks, and told what they have to know. Keeps the engine alive. Needs
// the GIL, and one call at a time. Neither the engine nor the notes know it, so it is in no reference cycle.
class TierLookup {
 public:
  TierLookup(nb::object engine, nb::object notes, nb::object miss, nb::object hit, nb::object retry);

  // The object that stands for the verdict. Throws as ask(), and what `context` and the notes raise.
  nb::object answer(nb::handle key, nb::handle context);

  // The Python function `(key, req_context)` that is answer(). It is not nanobind's, whose way of finding and
  // converting arguments takes longer than the answer.
  static nb::object function(std::unique_ptr<TierLookup> lookup);

 private:
  void begin(const nb::object& request_id);
  // Whether the key is a hit as it was in the request's last step: the next of them, and none of them is
  // lost.
  bool remembered(nb::handle key);
  void wait();

  const nb::object engine_object_;
  BoundEngine& engine_;
  const nb::object notes_;
  const nb::object miss_;
  const nb::object hit_;
  const nb::object retry_;
  // Names of attributes; made once, since that costs as much as reading one.
  const nb::object req_id_;
  const nb::object request_id_;
  const nb::object memory_;

  // Of the request that is asking.
  double waiting_since_s_;
  nb::object denied_;  // none if there are no denied keys
  bool must_wait_ = false;
  // The key that it was the first to ask about, none before that. From then on it waits in any case, so that
  // what is known of its other keys does not matter in this step; a look at each costs more than the
  // question. Whoever asks about this one again does not end his steps, and wants its answer.
  std::string first_asked_;
  // Its hits before that in their order, as a Python list, which its notes keep for its next step: vLLM asks
  // about the same keys again, and after a step no memory is as cheap as one that is read in order. The first
  // `confirmed_` are of this step. Stays until another request asks.
  nb::list hits_;
  Py_ssize_t confirmed_ = 0;
  std::uint64_t losses_ = 0;  // of the engine before the first of them was looked up
};

}  // namespace kvfs::python
