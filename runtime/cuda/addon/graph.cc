// Launches prepared once as a graph, run and timed.
#include "session.h"

std::optional<Failure> Session::capture(const LaunchList& launches, unsigned rounds, CUgraphExec& graph,
                                        const Span* timed) {
  TRY_SESSION(streamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  std::optional<Failure> failed;
  const auto mark = [&](CUevent event) {
    if (!failed)
      failed = check("eventRecordWithFlags", cu.eventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
  };
  if (timed != nullptr) mark(timed->start);
  for (unsigned round = 0; round < rounds && !failed; round++) failed = submit(launches);
  if (timed != nullptr) mark(timed->end);
  CUgraph captured = nullptr;
  // Ends the capture after a failure too: the stream would stay in it.
  auto ended = check("streamEndCapture", cu.streamEndCapture(stream, &captured));
  if (!failed) failed = ended;
  if (!failed) failed = check("graphInstantiateWithFlags", cu.graphInstantiateWithFlags(&graph, captured, 0));
  // Else the first launch would take the time.
  if (!failed) failed = check("graphUpload", cu.graphUpload(graph, stream));
  if (captured != nullptr && !lost) cu.graphDestroy(captured);
  if (failed && graph != nullptr) {
    if (!lost) cu.graphExecDestroy(graph);
    graph = nullptr;
  }
  return failed;
}

std::optional<Failure> Session::record(const LaunchList& launches, int& id) {
  CUgraphExec graph = nullptr;
  TRY(capture(launches, 1, graph, nullptr));
  id = nextGraph++;
  graphs[id] = graph;
  return std::nullopt;
}

std::optional<Failure> Session::replay(int id, int limitMs) {
  const Deadline deadline(limitMs);
  TRY_SESSION(graphLaunch, graphs.at(id), stream);
  return wait(deadline);
}

std::optional<Failure> Session::dropGraph(int id) {
  const CUgraphExec graph = graphs.at(id);
  graphs.erase(id);
  return check("graphExecDestroy", cu.graphExecDestroy(graph));
}

std::optional<Failure> Session::time(const LaunchList& launches, unsigned rounds, unsigned samples,
                                     int limitMs, std::vector<double>& milliseconds) {
  Span span;
  CUgraphExec graph = nullptr;
  auto failed = check("eventCreate", cu.eventCreate(&span.start, CU_EVENT_DEFAULT));
  if (!failed) failed = check("eventCreate", cu.eventCreate(&span.end, CU_EVENT_DEFAULT));
  // The events are nodes of the graph: the time that the host takes to submit it is in no sample.
  if (!failed) failed = capture(launches, rounds, graph, &span);
  // The warm-up.
  if (!failed) failed = run(launches, limitMs);
  for (unsigned sample = 0; sample < samples && !failed; sample++) {
    failed = check("graphLaunch", cu.graphLaunch(graph, stream));
    if (!failed) failed = wait(Deadline(limitMs));
    float elapsed = 0;
    if (!failed) failed = check("eventElapsedTime", cu.eventElapsedTime(&elapsed, span.start, span.end));
    milliseconds.push_back(elapsed);
  }
  if (lost) return failed;
  if (graph != nullptr) cu.graphExecDestroy(graph);
  for (CUevent event : {span.start, span.end}) {
    if (event != nullptr) cu.eventDestroy(event);
  }
  return failed;
}
