module tidegate.example/service

go 1.19
