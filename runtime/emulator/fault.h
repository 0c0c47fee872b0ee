// A fault of a kernel, as data. The host program knows addresses and numbers; emulator.ts turns them into words.
#pragma once
#include <cstdio>
#include <string>

#include "types.h"

namespace kvf {

// Where a thread was. A return address leads to a line through debug information; collectives tell the line itself.
struct Site {
  bool known = false;
  u32 thread = 0;
  u64 block = 0;
  u64 pc = 0;
  u32 line = 0;
  bool write = false;
};

// What an address belongs to. `offset` is from the start of the binding, or of the shared memory block.
struct Place {
  const char* space = "none";
  u32 binding = 0;
  long long offset = 0;
};

struct Fault {
  const char* kind = "";
  Site at;
  Site other;
  Place place;
  u32 bytes = 0;
  u64 address = 0;
  // A number or a name that only some kinds have: lane mask, index, signal.
  u64 detail = 0;
  const char* text = "";
};

// Return addresses leave as offsets into the module, which is what addr2line takes.
inline std::string site_json(const Site& site, u64 module) {
  char text[200];
  snprintf(text, sizeof text, "{\"thread\":%u,\"block\":%llu,\"pc\":%llu,\"line\":%u,\"write\":%s}", site.thread,
           site.block, site.pc == 0 ? 0 : site.pc - module, site.line, site.write ? "true" : "false");
  return text;
}

inline std::string fault_json(const Fault& fault, u32 launch, u64 module) {
  char text[400];
  snprintf(text, sizeof text,
           ",\"launch\":%u,\"bytes\":%u,\"address\":\"0x%llx\",\"detail\":%lld,\"space\":\"%s\",\"binding\":%u,"
           "\"offset\":%lld",
           launch, fault.bytes, fault.address, static_cast<long long>(fault.detail), fault.place.space, fault.place.binding,
           fault.place.offset);
  std::string json = "{\"kind\":\"" + std::string(fault.kind) + "\",\"text\":\"" + fault.text + "\"" + text;
  json += ",\"at\":" + site_json(fault.at, module);
  if (fault.other.known) json += ",\"other\":" + site_json(fault.other, module);
  return json + "}";
}

}  // namespace kvf
