# Runs code in this interpreter for the agent. Everything is in one lambda, so
# that the code finds no names of the driver's, and what the code may redefine
# at the top level (puts, raise, trap) is not called here without a receiver. It
# needs Ruby 3.2 or later.
lambda do
  control, code, state = [3, 4, 5].map do |number|
    file = IO.for_fd(number, 'r+b')
    file.close_on_exec = true
    file
  end
  main = TOPLEVEL_BINDING
  pid = Process.pid
  file = __FILE__
  whole_message = Exception.instance_method(:full_message)
  short_message = Exception.instance_method(:detailed_message)

  libraries = $LOAD_PATH.map { |folder| "#{folder}/" }.freeze

  # The library that a frame belongs to, or nil for one of the code.
  library = lambda do |frame|
    folder = libraries.find { |prefix| frame.start_with?(prefix) }
    next frame[folder.size..][/\A[^:]*?(?=\.rb:|:)/] if folder
    frame[%r{/gems/([^/]+)-[^/-]+/}, 1] || frame[%r{\A<internal:.*/(rubygems)/}, 1] || frame[/\A<internal:([^>]+)>/, 1]
  end

  # Folds the frames of libraries that follow each other into one line with their
  # number. The place where the error was raised stays.
  fold = lambda do |trace|
    how = '; full_message in a rescue shows all'
    trace.slice_when { |before, after| library.(before).nil? != library.(after).nil? }.flat_map do |frames|
      names = frames.map(&library).uniq
      next frames if names == [nil] || frames.size < 2
      first = []
      if frames.first.equal?(trace.first)
        first << frames.first.delete_prefix(libraries.find { |prefix| frames.first.start_with?(prefix) }.to_s)
        first.last.sub!(%r{\A<internal:/[^>]*/rubygems/}, '<internal:rubygems/')
      end
      count = frames.size - first.size
      line = "[#{count} frame#{'s' if count > 1} of #{names.first(4).join(', ')}#{how}]"
      how = ''
      first << line
    end
  end

  # Folds the frames of libraries in a trace, in causes too.
  fold_all = lambda do |error|
    100.times do
      break if error.nil?
      trace = error.backtrace
      error.set_backtrace(fold.(trace)) if trace
      error = error.cause
    end
  end

  # What code reads of an error's frames ends before the driver's.
  %i[backtrace backtrace_locations].each do |name|
    all = Exception.instance_method(name)
    Exception.define_method(name) do
      trace = all.bind_call(self)
      own = trace&.index { |frame| frame.to_s.start_with?(file) }
      own ? trace.first(own) : trace
    end
  end

  # Prints an error as ruby does at the end of a program.
  report = lambda do |error|
    fold_all.(error)
    # Code that cannot be parsed leaves no trace. For such an error
    # full_message would name the line of the driver that calls it.
    message = error.backtrace.nil? || error.backtrace.empty? ? short_message : whole_message
    begin
      text = message.bind_call(error, highlight: false)
    rescue StandardError
      text = "#{error.class}: its message cannot be shown"
    end
    text += "\n" unless text.end_with?("\n")
    begin
      $stderr.write(text)
    rescue StandardError
      STDERR.write(text)
    end
  end

  # Calls that are made for what they do, not for their value.
  quiet = %i[
    alias_method at_exit attr_accessor attr_reader attr_writer autoload extend include load p pp prepend private protected
    public refine require require_relative srand trap using
  ]
  # Calls with a block that return their receiver.
  walks = %i[
    each each_char each_cons each_entry each_index each_key each_line each_pair each_slice each_value each_with_index
    reverse_each downto step times upto
  ]

  # Whether the value of the code's last statement is shown: that of an
  # assignment, a definition or one of these calls is not.
  shown = lambda do |source|
    next false if source.rstrip.end_with?(';')
    verbose = $VERBOSE
    begin
      $VERBOSE = nil # eval gives the same warnings
      node = RubyVM::AbstractSyntaxTree.parse(source).children.last
    rescue StandardError, ScriptError
      next true
    ensure
      $VERBOSE = verbose
    end
    node = node.children.compact.last while node&.type == :BLOCK
    case node&.type
    when nil, /ASGN|CDECL|\ADEF[NS]\z|\A(?:CLASS|SCLASS|MODULE|ALIAS|VALIAS|UNDEF)\z/
      false
    when :FCALL
      !quiet.include?(node.children[0])
    when :ITER
      name = node.children[0].children.find { |child| child.is_a?(Symbol) }
      !walks.include?(name) && !quiet.include?(name)
    else
      true
    end
  end

  # Whether the last line of standard output is not ended.
  begun = false
  STDOUT.define_singleton_method(:write) do |*texts|
    texts.map! { |text| String === text ? text : text.to_s }
    end_of_all = texts.reverse_each.find { |text| !text.empty? }
    begun = !end_of_all.b.end_with?("\n") if end_of_all
    super(*texts)
  end

  show = lambda do |value|
    next if nil.equal?(value)
    begin
      text = value.inspect
    rescue StandardError
      text = '[a value that cannot be shown]'
    end
    STDOUT.write("\n") if begun && STDOUT.equal?($stdout)
    $stdout.puts(text)
  end

  # What follows __END__ is no code: a program reads it from DATA.
  divide = lambda do |source|
    program, mark, rest = source.partition(/^__END__$\n?/)
    next source if mark.empty?
    path = "/tmp/.data-#{Process.pid}"
    file = File.open(path, File::RDWR | File::CREAT | File::EXCL)
    File.unlink(path)
    file.write(rest)
    file.rewind
    Object.send(:remove_const, :DATA) if Object.const_defined?(:DATA, false)
    Object.const_set(:DATA, file)
    program
  end

  # Runs the tests of code that leaves them to the end of a program, which is no end
  # of a call. Returns whether they passed.
  test = lambda do |source|
    next true unless defined?(::Minitest.autorun) && source.match?(/Minitest::(?:Test|Spec)|Test::Unit|^\s*def test_/)
    next true unless ::Minitest.class_variable_defined?(:@@installed_at_exit) && ::Minitest.class_variable_get(:@@installed_at_exit)
    ::Minitest.run([])
  end

  run = lambda do |source, name|
    $PROGRAM_NAME = name
    source = divide.(source)
    show_it = shown.(source)
    value = main.eval(source, name, 1)
    # A value that a child of the code computed is not shown twice.
    show.(value) if show_it && Process.pid == pid
  end

  # Runs code and returns its exit status. A signal may still arrive while it
  # returns.
  call = lambda do |source, name|
    status = 0
    begin
      run.(source, name)
      status = 1 unless Process.pid != pid || test.(source)
    rescue SystemExit => error
      status = error.status
    rescue SignalException => error
      report.(error)
      status = 128 + error.signo
    rescue Exception => error
      report.(error)
      status = 1
    ensure
      # This takes the place of a return at the code's top level, which would
      # end the program and so the driver.
      return status
    end
  end

  flush = lambda do
    [$stdout, $stderr, STDOUT, STDERR].each do |stream|
      stream.flush
    rescue StandardError
      # It is closed, or not a stream.
    end
  end

  idle = proc {} # SIGINT comes too late, or for a child
  handler = 'DEFAULT'
  $stdout.sync = true
  Signal.trap('INT', idle)
  source = ''
  begin
    control.syswrite("ready\n")
    while true
      begin
        line = control.readpartial(64)
      rescue EOFError
        Process.exit!(0) # the agent has ended
      rescue SystemCallError, IOError
        Process.exit!(70) # the code has closed the control channel
      rescue Exception => error
        report.(error) # of a thread, where Thread.abort_on_exception is set
        retry
      end
      word, nonce, number, size = line.split
      source = size == '0' ? +'' : code.pread(size.to_i, 0)
      source = source.force_encoding('UTF-8').delete_prefix("\uFEFF")
      break if word == 'last'
      # The signal that ended the call before may still be on its way.
      Kernel.sleep(0.005) if word == 'late'
      begin
        Signal.trap('INT', handler)
        status = call.(source, "call-#{number}")
      rescue SignalException => error
        status = 128 + error.signo
      end
      begin
        handler = Signal.trap('INT', idle) || 'DEFAULT'
      rescue SignalException
        retry
      end
      flush.()
      Process.exit!(status) if Process.pid != pid # a child that the code forked and let go on
      control.syswrite("done #{nonce} #{status & 0xff}\n")
    end
    [control, code, state].each(&:close)
  rescue SystemCallError, IOError
    Process.exit!(70)
  end

  # A program: ruby ends as it does at the end of any.
  Signal.trap('INT', 'DEFAULT')
  begin
    run.(source, 'code')
  rescue Exception => error
    fold_all.(error)
    Kernel.raise(error) unless error.is_a?(SyntaxError) && error.backtrace.empty?
    report.(error)
    Kernel.exit(1)
  end
end.call
