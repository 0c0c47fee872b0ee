{
  "targets": [
    {
      "target_name": "kvforge",
      "sources": [
        "addon.cc",
        "completion.cc",
        "device.cc",
        "driver.cc",
        "exit_guard.cc",
        "failure.cc",
        "graph.cc",
        "launch.cc",
        "library.cc",
        "module.cc",
        "nvrtc.cc",
        "session.cc",
        "transfer.cc",
        "worker.cc"
      ],
      "include_dirs": ["<!(node -p \"require('node-addon-api').include_dir\")"],
      "defines": ["NAPI_VERSION=8", "NODE_ADDON_API_CPP_EXCEPTIONS_ALL"],
      "cflags_cc!": ["-fno-exceptions"],
      "cflags_cc": ["-std=c++17", "-Wall", "-Wextra", "-Wno-unused-parameter"],
      "conditions": [
        # Never unloaded: threads of its own may outlive the worker of Node that loaded it.
        ["OS=='linux'", { "libraries": ["-ldl", "-lpthread"], "ldflags": ["-Wl,-z,nodelete"] }],
        ["OS=='mac'", { "xcode_settings": { "CLANG_CXX_LANGUAGE_STANDARD": "c++17", "GCC_ENABLE_CPP_EXCEPTIONS": "YES" } }],
        ["OS=='win'", { "msvs_settings": { "VCCLCompilerTool": { "ExceptionHandling": 1, "AdditionalOptions": ["/std:c++17"] } } }]
      ]
    }
  ]
}
