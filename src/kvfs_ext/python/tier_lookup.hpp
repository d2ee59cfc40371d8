// The question of a tier's user, "is this key there, for this request?", answered without Python code.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>

#include "python/bound_engine.hpp"

namespace kvfs::python {

// Asks the engine, and notes of requests since when they wait for answers and which keys failed to load for
// them; what is noted of the request that is asking lies apart, because the scheduler asks key by key. Keeps
// the engine alive. Needs the GIL, and one call at a time. Its engine does not know it, so it is in no
// reference cycle.
class TierLookup {
 public:
  TierLookup(nb::object engine, nb::object miss, nb::object hit, nb::object retry);

  // The object that stands for the verdict. Throws as BoundEngine::ask(), and what `context` raises.
  nb::object answer(nb::handle key, nb::handle context);

  // What the scheduler has asked is handed to the threads, and whoever has to wait waits from now on.
  void end_step();
  // Keys whose load failed are a miss for a request as long as it lives.
  void deny(nb::handle keys, nb::handle request_id);
  // Drop what was noted of a request.
  void forget(nb::handle request_id);
  [[nodiscard]] bool has_notes() const { return !waiting_.empty() || !denied_.empty(); }

  // The Python functions `(key, req_context)` that is answer() of `self`, a TierLookup, and `(context=None)`
  // that is end_step(). They are not nanobind's, whose way of finding and converting arguments takes longer
  // than the answer.
  static nb::object answer_function(nb::handle self);
  static nb::object end_step_function(nb::handle self);

 private:
  // Of a request that waits.
  struct Waiting {
    double since_s = 0;
    nb::list hits;
    std::uint64_t losses = 0;
    Py_ssize_t next = 0;
  };

  // Another context than the last: of another request, or of the same.
  void look_at(nb::handle context);
  // Turn to the request that asks from now on.
  void begin(nb::object request_id);
  // Put away what was noted of the request that has asked.
  void end();
  // It has its answer, and goes on asking without an end of the step.
  void missed();
  // Whether the key is the next of those that are known to be hits, and none of them is lost.
  bool remembered(nb::handle key);
  // Look several keys up together, the one that is asked about and those that vLLM asks about next, and
  // remember those that are hits.
  void look_ahead(nb::handle key);
  // Have `next_` be the key in its request's keys; false if it is none of them.
  bool find_in_keys(nb::handle key);

  const nb::object engine_object_;
  BoundEngine& engine_;
  const nb::object miss_;
  const nb::object hit_;
  const nb::object retry_;
  // Attributes' names; made once, since that costs as much as reading one.
  const nb::object req_id_;
  const nb::object keys_name_;

  std::unordered_map<std::string, Waiting> waiting_;
  std::unordered_map<std::string, nb::set> denied_;

  // Of the request that is asking; none between two.
  nb::object asking_;
  nb::object context_;  // vLLM makes one for each request, which has its name for good
  std::string name_;
  double began_s_ = 0;
  // Infinity if it does not wait.
  double waiting_since_s_ = std::numeric_limits<double>::infinity();
  nb::object denied_now_;  // none if there are no denied keys
  bool must_wait_ = false;
  // The key that it was the first to ask about, none before that. From then on it waits in any case, so that
  // what is known of its other keys does not matter in this step; a look at each costs more than the
  // question. Whoever asks about this one again does not end his steps, and wants its answer.
  std::string first_asked_;
  // Its hits before that in their order, as a Python list, which its notes keep for its next step: vLLM asks
  // about the same keys again, and after a step no memory is as cheap as one that is read in order. It was
  // asked about the first `confirmed_` in this step.
  nb::list hits_;
  Py_ssize_t confirmed_ = 0;
  // All its keys in their order, a dict of vLLM's, once they were needed; and where the first of them is that
  // is no hit, if it has been looked for.
  nb::object keys_;
  Py_ssize_t next_ = 0;
  std::string packed_;
  std::size_t ahead_ = 0;     // keys that are looked up together, if any
  std::uint64_t losses_ = 0;  // of the engine before the first of them was looked up
};

}  // namespace kvfs::python
